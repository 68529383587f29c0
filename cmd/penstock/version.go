package main

import (
	"fmt"
	"runtime"

	"github.com/penstock-io/penstock/server"
	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintf(c.OutOrStdout(), "penstock %s %s %s/%s\n", server.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
