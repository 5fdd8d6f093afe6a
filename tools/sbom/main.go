// Command sbom writes the bill of materials of programs: every Go module that is linked into them, with its version
// and checksum, as CycloneDX JSON. It reads the build information that the Go linker leaves in each program, so it says
// what is in the program, not what a go.mod asks for. The same programs, version and time always give the same bytes.
//
//	go run ./sbom -version v1.2.3 -o sbom.cdx.json kube-proxy ruledump
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "the version of the programs")
	created := flag.Int64("created", 0, "when they were made, in seconds since 1970; 0 leaves that out")
	output := flag.String("o", "", "the file to write")
	flag.Parse()
	if err := run(*version, *created, *output, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(version string, created int64, output string, programs []string) error {
	bom, err := billOf(version, programs)
	if err != nil {
		return err
	}
	if created != 0 {
		bom.Metadata.Timestamp = time.Unix(created, 0).UTC().Format(time.RFC3339)
	}
	file, err := os.Create(output)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return fmt.Errorf("%s: %w", output, err)
	}
	return file.Close()
}
