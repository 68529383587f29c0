package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server"
	"github.com/spf13/cobra"
)

// A doctor tries a store before a server relies on it.
type doctor struct {
	store, config string
	json, create  bool
}

func doctorCommand() *cobra.Command {
	var d doctor
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Try whether a Redis, a proxy in front of it, or a database can be the store",
		Long: `Doctor connects to the Redis or database of --store as the server would, tries each thing
that the server needs on keys of its own, which it deletes, and prints what works, what is
degraded and what that costs, and what is broken and what to change. It measures round trips
for two seconds, and changes nothing: only --create creates a missing table in a database.
Without --store it tries the store of the server's settings: the config file and the environment.

The exit code is 0 if nothing is broken, 1 if something is, and 2 if the settings are wrong.`,
		Example: `  penstock doctor --store redis://localhost:6379
  penstock doctor --store redis://localhost:6379 --json`,
		Args: noArgs,
		RunE: d.run,
	}
	f := c.Flags()
	f.StringVar(&d.store, "store", "", "URL of the store; by default the store of penstock serve on this machine")
	f.StringVar(&d.config, "config", "", "config file of the server (default: $PENSTOCK_CONFIG)")
	f.BoolVar(&d.create, "create", false, "create the table in a database if it does not exist")
	f.BoolVar(&d.json, "json", false, "print the findings as JSON")
	completeFlag(c, "store", "url", nil)
	completeFlag(c, "config", "file", nil)
	return c
}

func (d *doctor) run(c *cobra.Command, _ []string) error {
	settings, err := (&connectFlags{config: d.config, store: d.store}).settings()
	if err != nil {
		return err
	}
	if strings.HasPrefix(settings.Store, "memory:") {
		return errors.New("the store is memory: want --store with a URL such as redis://localhost:6379 or postgres://localhost/penstock")
	}
	findings, err := server.CheckSQL(c.Context(), settings, d.create)
	if findings == nil && err == nil {
		findings, err = redisstore.Check(c.Context(), settings.Store, &redisstore.Options{Prefix: settings.RedisPrefix, Timeout: settings.RedisTimeout})
	}
	if errors.Is(err, penstock.ErrUnavailable) {
		findings, err = []redisstore.Finding{noAnswer(err)}, nil
	}
	if err != nil {
		return err
	}
	if d.json {
		text, _ := json.MarshalIndent(findings, "", "  ") // texts only
		printJSON(c.OutOrStdout(), text)
	} else {
		printFindings(c.OutOrStdout(), findings)
	}
	if slices.ContainsFunc(findings, func(f redisstore.Finding) bool { return f.State == redisstore.Broken }) {
		return errNegative
	}
	return nil
}

// noAnswer is what was found of a store that cannot be reached.
func noAnswer(err error) redisstore.Finding {
	f := redisstore.Finding{What: "connection", State: redisstore.Broken, Detail: oneLine(err)}
	if network := net.Error(nil); errors.Is(err, context.DeadlineExceeded) {
		f.Detail = "no answer in time"
	} else if errors.As(err, &network) {
		f.Detail = network.Error() // without the words of each driver around it
	}
	f.Advice = "nothing answers: check that the server runs, and that this machine can reach the host and port of the URL"
	return f
}

// printFindings prints a table for people to read.
func printFindings(w io.Writer, findings []redisstore.Finding) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.What, f.State, printable(f.Detail))
		if f.Advice != "" {
			fmt.Fprintf(table, "\t\t→ %s\n", f.Advice)
		}
	}
	_ = table.Flush() // fails only if the output is closed
}
