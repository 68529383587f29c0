package main

import (
	"encoding/json"
	"net/http"

	"github.com/spf13/cobra"
)

func healthCommand() *cobra.Command {
	flags := connectFlags{withoutToken: true}
	return flags.command(&cobra.Command{
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
	}, "admin", health)
}

// health prints the response of /readyz.
func health(c *cobra.Command, at *connection, _ []string) error {
	response, text, err := at.send(c.Context(), adminRequest{method: http.MethodGet, path: "/readyz"})
	if err != nil {
		return err
	}
	var readiness struct{ Ready *bool }
	if err := json.Unmarshal(text, &readiness); err != nil || readiness.Ready == nil {
		return at.notAdmin(response, text)
	}
	printJSON(c.OutOrStdout(), text)
	if !*readiness.Ready {
		return errNegative
	}
	return nil
}
