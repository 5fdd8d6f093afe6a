// Command ruledump prints the nftables ruleset that the proxy would program, or the one that
// the kernel holds. It never changes anything and runs no other program.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := newCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "ruledump:", err)
		os.Exit(1)
	}
}
