package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
	"github.com/spf13/cobra"
)

// A takeRequest is what take asks a server: for units of a key under a limit, or of
// what the rules of a domain make of entries.
type takeRequest struct {
	key, limit, id string
	atMost         bool
	domain         string
	entries        []rules.Entry
	cost           int64
	token          string
}

func takeCommand() *cobra.Command {
	var r takeRequest
	var server string
	var raw bool
	take := &cobra.Command{
		Use:   "take KEY --limit LIMIT | take --domain DOMAIN KEY=VALUE...",
		Short: "Take units from a running server",
		Long: `Take asks a running server for units of a key, under the limit that it names, or by
the rules that the server has for a domain. It prints the decision and ends with
0 if it was allowed, 1 if it was denied, and 2 if there was none.

A cost of 0 looks and takes nothing; one below 0 gives back, which from another
machine needs the server's token.`,
		Example: `  penstock take user:42 --limit "10/1m"
  penstock take import --limit "1000/1h burst=1000" --cost 200 --at-most
  penstock take --domain shop user=42
  penstock take --domain shop user=42 --server grpc://localhost:8081
  if penstock take backup --limit 1/day; then ./backup; fi`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.read(args); err != nil {
				return err
			}
			if r.token == "" {
				r.token = os.Getenv("PENSTOCK_TOKEN")
			}
			a, err := r.ask(c.Context(), server)
			if err != nil {
				return err
			}
			return a.print(c.OutOrStdout(), raw)
		},
	}
	f := take.Flags()
	f.SortFlags = false
	f.StringVar(&r.limit, "limit", "", `how much, over how long: "10/1m", "30/1m burst=15", "5/day zone=Asia/Shanghai"`)
	f.StringVar(&r.domain, "domain", "", "domain whose rules decide")
	f.Int64Var(&r.cost, "cost", 1, "how many units")
	f.BoolVar(&r.atMost, "at-most", false, "take what is left if that is less")
	f.StringVar(&r.id, "id", "", "asking again with the same ID is charged once")
	f.StringVar(&server, "server", "http://127.0.0.1:8080", "where the server is; grpc://HOST:PORT asks as Envoy does")
	f.StringVar(&r.token, "token", "", "the server's token (default: PENSTOCK_TOKEN)")
	f.BoolVar(&raw, "json", false, "print the answer as JSON")
	return take
}

// read reads the arguments, and says which do not go together.
func (r *takeRequest) read(args []string) (err error) {
	if r.domain != "" {
		if r.limit != "" || r.atMost || r.id != "" {
			return errors.New("--domain: the rules say the limit; --limit, --at-most and --id go with a key")
		}
		r.entries, err = readEntries(args)
		return err
	}
	switch {
	case len(args) != 1:
		return fmt.Errorf("want one key, as in penstock take user:42 --limit \"10/1m\"; got %d", len(args))
	case r.limit == "":
		return errors.New("want a --limit such as \"10/1m\", or a --domain whose rules have it")
	}
	r.key = args[0]
	_, err = penstock.ParseLimit(r.limit)
	return err
}

// readEntries reads the entries of a descriptor.
func readEntries(args []string) ([]rules.Entry, error) {
	if len(args) == 0 {
		return nil, errors.New("want entries after the domain, as in user=42")
	}
	entries := make([]rules.Entry, len(args))
	for i, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		if key == "" {
			return nil, fmt.Errorf("%q: want an entry such as user=42", arg)
		}
		entries[i] = rules.Entry{Key: key, Value: value}
	}
	return entries, nil
}

// ask asks the server at an address, by the protocol that the address names.
func (r *takeRequest) ask(ctx context.Context, server string) (*takeAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("--server %q: want an address like http://127.0.0.1:8080", server)
	}
	switch u.Scheme {
	case "http", "https":
		return r.askHTTP(ctx, server)
	case "grpc", "grpcs":
		return r.askGRPC(ctx, u)
	}
	return nil, fmt.Errorf("--server %q: want http, https, grpc or grpcs before the address", server)
}

// A takeAnswer is what the server said.
type takeAnswer struct {
	allowed bool
	text    string // for people
	raw     []byte // JSON
}

func (a *takeAnswer) print(w io.Writer, raw bool) error {
	if raw {
		fmt.Fprintf(w, "%s\n", strings.TrimSpace(string(a.raw)))
	} else {
		fmt.Fprintln(w, a.text)
	}
	if !a.allowed {
		return errNo
	}
	return nil
}
