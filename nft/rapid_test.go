package nft

import (
	"flag"
	"strconv"
	"testing"
)

// limitChecks bounds how many random cases a test with the real kernel tries.
func limitChecks(t *testing.T, n int) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	old := checks.Value.String()
	if have, err := strconv.Atoi(old); err == nil && have <= n {
		return
	}
	if err := checks.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Value.Set(old) })
}
