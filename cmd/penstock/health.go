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
		Short: "Ask a running server whether it is ready",
		Long: `Health asks /readyz at the admin door, for containers that have nothing else to ask
with. It ends with 0 if the server is ready, 1 if it is not, and 2 if there was no
answer.`,
		Example: `  penstock health
  penstock health --server http://10.0.0.7:6070`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return health(c.Context(), server, c.OutOrStdout())
		},
	}
	health.Flags().StringVar(&server, "server", adminServer(os.Getenv("PENSTOCK_ADMIN")), "where the admin door is; by default, where PENSTOCK_ADMIN has it")
	return health
}

// adminServer returns where a server beside this one has its admin door, if it listens
// where the setting says.
func adminServer(setting string) string {
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
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err != nil {
		return err
	}
	fmt.Fprintln(w, strings.TrimSpace(string(text)))
	if answer.StatusCode != http.StatusOK {
		return errNo
	}
	return nil
}
