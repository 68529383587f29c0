package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

func healthCommand() *cobra.Command {
	var server string
	health := &cobra.Command{
		Use:   "health",
		Short: "Check whether a running server is ready",
		Long: `Health requests /readyz on the admin listener, for containers without curl. The exit
code is 0 if the server is ready, 1 if it is not, and 2 if there is no response.`,
		Example: `  penstock health
  penstock health --server http://10.0.0.7:6070`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return health(c.Context(), server, c.OutOrStdout())
		},
	}
	health.Flags().StringVar(&server, "server", adminURL(os.Getenv("PENSTOCK_ADMIN")), "URL of the admin listener; by default derived from PENSTOCK_ADMIN")
	return health
}

// adminURL returns the URL of the admin listener of a server on this machine, given
// its setting.
func adminURL(setting string) string {
	host, port, err := net.SplitHostPort(setting)
	if err != nil {
		return "http://127.0.0.1:6070"
	}
	if at, err := netip.ParseAddr(host); host == "" || err == nil && at.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

func health(ctx context.Context, server string, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return err
	}
	fmt.Fprintln(w, strings.TrimSpace(string(text)))
	if response.StatusCode != http.StatusOK {
		return errNegative
	}
	return nil
}
