package main

import (
	_ "embed"

	"github.com/spf13/cobra"
)

//go:embed schema.json
var schema []byte

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of all JSON that ruledump writes",
		Long: `schema prints the JSON Schema (draft 2020-12) of the documents that all commands write with
"-o json" and "-o yaml". Each has an apiVersion and a kind. Further fields may come without
a new apiVersion; readers ignore those that they do not know.`,
		Example: `  ruledump schema > ruledump.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(schema)
			return err
		},
	}
}
