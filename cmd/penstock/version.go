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
		Args:  noArgs,
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintln(c.OutOrStdout(), version())
		},
	}
}

func version() string {
	return fmt.Sprintf("penstock %s %s %s/%s", server.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
