package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

func healthCommand() *cobra.Command {
	var flags connectFlags
	health := &cobra.Command{
		Use:   "health",
		Short: "Check whether a running server is ready",
		Long: `Health requests /readyz on the admin listener, for containers without curl. It finds
the listener by the server's settings: the config file and the environment. The exit
code is 0 if the server is ready, 1 if it is not, and 2 if there is no answer.`,
		Example: `  penstock health
  penstock health --config /etc/penstock/penstock.yaml
  penstock health --server http://10.0.0.7:6070
  penstock health --server https://10.0.0.7:6070 --ca ca.crt`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			at, err := flags.connect("admin")
			if err != nil {
				return err
			}
			return at.health(c.Context(), c.OutOrStdout())
		},
	}
	health.Flags().SortFlags = false
	flags.add(health, "admin")
	return health
}

// health prints the response of /readyz.
func (at *connection) health(ctx context.Context, w io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.url.JoinPath("/readyz").String(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := at.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAdminResponse))
	if err != nil {
		return err
	}
	var readiness struct{ Ready *bool }
	if err := json.Unmarshal(text, &readiness); err != nil || readiness.Ready == nil {
		return at.notAdmin(response, text)
	}
	fmt.Fprintln(w, strings.TrimSpace(string(text)))
	if !*readiness.Ready {
		return errNegative
	}
	return nil
}
