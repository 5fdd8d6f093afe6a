package main

import (
	"fmt"
	"os"

	"github.com/nftproxy/nftproxy/internal/version"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write man pages",
		Long:   `man writes the man pages of ruledump and of all its commands to a directory, from the text that --help prints.`,
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("man pages: %w", err)
			}
			cmd.Root().DisableAutoGenTag = true // no date: the same source gives the same pages
			return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Section: "8", Source: "nftproxy " + version.Own(), Manual: "nftproxy"}, args[0])
		},
	}
}
