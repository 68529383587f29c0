package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/spf13/cobra"
)

// A takeRequest takes units from a server: of a key under a limit, or of a descriptor's
// entries under the rules of a domain.
type takeRequest struct {
	connectFlags
	key, limit, id string
	atMost         bool
	domain         string
	entries        []rules.Entry
	cost           int64
	settle         bool // whether to settle what was taken under the ID
	json           bool
}

func takeCommand() *cobra.Command {
	r := &takeRequest{}
	take := &cobra.Command{
		Use:   "take KEY --limit LIMIT | take --domain DOMAIN KEY=VALUE...",
		Short: "Take units from a running server",
		Long: `Take requests units of a key from a running server, either under the limit in
--limit or under the server's rules for a domain. It prints the decision. The exit
code is 0 if the request was allowed, 1 if it was denied, and 2 if there was no
decision.

A cost of 0 peeks without taking anything. A negative cost refunds units. That
needs the server's token, or if the server has none, to run on the same machine;
with --id it needs neither.`,
		Example: `  penstock take user:42 --limit "10/1m"
  penstock take import --limit "1000/1h burst=1000" --cost 200 --at-most
  penstock take --domain shop user=42
  penstock take --domain shop user=42 --server grpc://localhost:8081
  if penstock take backup --limit 1/day; then ./backup; fi`,
	}
	f := take.Flags()
	f.StringVar(&r.limit, "limit", "", `limit, such as "10/1m", "30/1m burst=15" or "5/day zone=Asia/Shanghai fixed-window"`)
	f.StringVar(&r.domain, "domain", "", "domain whose rules apply")
	f.Int64Var(&r.cost, "cost", 1, "units to take; 0 peeks, less than 0 refunds")
	f.BoolVar(&r.atMost, "at-most", false, "take what is left if it is less than the cost")
	f.StringVar(&r.id, "id", "", "request ID: repeated requests with the same ID are charged once")
	r.command(take)
	f.Lookup("server").Usage += "; grpc://HOST:PORT uses Envoy's protocol"
	return take
}

func settleCommand() *cobra.Command {
	r := &takeRequest{settle: true}
	settle := &cobra.Command{
		Use:   "settle KEY --limit LIMIT --id ID --cost AMOUNT | settle --domain DOMAIN --id ID --cost AMOUNT KEY=VALUE...",
		Short: "Correct what was taken, once the true cost is known",
		Long: `Settle makes what was taken under an ID equal to what was really used. It refunds
what was too much, except what time has paid back already, and charges what was too
little as a debt. It can be repeated, also with another amount. The exit code is 2 if
the server does not remember the ID; then nothing is charged. With --domain, the rule
needs settle: true.`,
		Example: `  penstock take team:9 --limit "100000/1m" --cost 4000 --id b81c
  penstock settle team:9 --limit "100000/1m" --cost 812 --id b81c
  penstock settle --domain llm team=9 --cost 812 --id b81c`,
	}
	f := settle.Flags()
	f.StringVar(&r.limit, "limit", "", "limit under which was taken")
	f.StringVar(&r.domain, "domain", "", "domain whose rules apply")
	f.StringVar(&r.id, "id", "", "ID under which was taken")
	f.Int64Var(&r.cost, "cost", 0, "units that were used")
	return r.command(settle)
}

// command adds to a command what both have.
func (r *takeRequest) command(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&r.json, "json", false, "print the response as JSON")
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if r.settle && (!c.Flags().Changed("cost") || r.id == "") {
			return errors.New("want --id, under which was taken, and --cost, the amount that was used")
		}
		return r.parseArgs(args)
	}
	return r.connectFlags.command(c, "http", func(c *cobra.Command, at *connection, _ []string) error {
		a, err := r.send(c.Context(), at)
		if err != nil {
			return err
		}
		return a.print(c.OutOrStdout(), r.json)
	})
}

// parseArgs parses the arguments, and rejects flags that exclude each other.
func (r *takeRequest) parseArgs(args []string) (err error) {
	if r.domain != "" {
		if r.limit != "" {
			return errors.New("--domain: cannot be combined with --limit, which needs a key")
		}
		r.entries, err = parseEntries(args)
		return err
	}
	switch {
	case len(args) != 1:
		return fmt.Errorf("want one key, as in penstock take user:42 --limit \"10/1m\"; got %d arguments", len(args))
	case args[0] == "":
		return errors.New("the key is empty: want one such as user:42")
	case r.limit == "":
		return errors.New("no limit: set --limit, such as \"10/1m\", or --domain to use the server's rules")
	}
	r.key = args[0]
	_, err = penstock.ParseLimit(r.limit)
	return err
}

// parseEntries parses the entries of a descriptor.
func parseEntries(args []string) ([]rules.Entry, error) {
	if len(args) == 0 {
		return nil, errors.New("no entries: add at least one after the domain, as in user=42")
	}
	entries := make([]rules.Entry, len(args))
	for i, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if key == "" || !ok {
			return nil, fmt.Errorf("%q: want an entry such as user=42", arg)
		}
		entries[i] = rules.Entry{Key: key, Value: value}
	}
	return entries, nil
}

// send sends the request to the server, by the protocol of its URL.
func (r *takeRequest) send(ctx context.Context, at *connection) (*takeResult, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	switch at.url.Scheme {
	case "http", "https":
		return r.sendHTTP(ctx, at)
	case "grpc", "grpcs":
		if r.settle {
			return nil, fmt.Errorf("--server %q: Envoy's protocol cannot settle: want a URL with http or https", at.url)
		}
		if r.id != "" || r.atMost {
			return nil, fmt.Errorf("--server %q: Envoy's protocol has no ID and no partial grants: want a URL with http or https", at.url)
		}
		return r.sendGRPC(ctx, at)
	}
	return nil, fmt.Errorf("--server %q: want a URL with http, https, grpc or grpcs", at.url)
}

// A takeResult is the server's decision.
type takeResult struct {
	allowed bool
	text    string // to print
	raw     []byte // JSON, to print with --json
}

func (a *takeResult) print(w io.Writer, raw bool) error {
	if raw {
		printJSON(w, a.raw)
	} else {
		fmt.Fprintln(w, a.text)
	}
	if !a.allowed {
		return errNegative
	}
	return nil
}
