package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// A topCommand shows what a running server does, as its page does in a browser.
type topCommand struct {
	connectFlags
	view     string
	window   string
	sort     string
	filter   string
	by       string
	rule     string
	scope    string
	rows     int
	interval time.Duration
	once     bool
	json     bool
	choices  []choice
}

// The views of penstock top.
const (
	viewLive = "live"
	viewKeys = "keys"
)

func topCommandOf() *cobra.Command {
	t := &topCommand{}
	c := &cobra.Command{
		Use:   "top",
		Short: "Show rates, rules and top keys of a running server",
		Long: `Top shows what a running server does, once a second: rates, latency, the store and
the rules, or the keys with the most decisions or denials.

Keys: l live, k keys, a most asked, d most denied, w next window, s next order, q quit.

The command uses the admin API. It finds the listener by the server's settings: the
config file and the environment. If the server has a token, the command needs it.
Colors are used on terminals, unless NO_COLOR is set.`,
		Example: `  penstock top --once
  penstock top --once --view keys --by denied
  penstock top --once --json`,
		Args:    noArgs,
		PreRunE: func(*cobra.Command, []string) error { return t.check() },
	}
	t.addFlags(c)
	return t.command(c, "admin", func(c *cobra.Command, at *connection, _ []string) error {
		return t.run(c.Context(), at, c.OutOrStdout())
	})
}

func (t *topCommand) addFlags(c *cobra.Command) {
	f := c.Flags()
	words := func(to *string, name, help string, values ...string) {
		f.StringVar(to, name, values[0], help)
		completeFlag(c, name, "", values)
		t.choices = append(t.choices, choice{name, to, values})
	}
	words(&t.view, "view", "live or keys", viewLive, viewKeys)
	words(&t.window, "window", "how far back: 2m, 1h or 1d", windowNames()...)
	words(&t.sort, "sort", "order of the rules: decisions, denied, denied_share, shadow_share, errors or name", observe.SortNames...)
	f.StringVar(&t.filter, "filter", "", "show only rules with this text in their names")
	words(&t.by, "by", "order of the keys: asked or denied", observe.ByAsked, observe.ByDenied)
	f.StringVar(&t.rule, "rule", "", "show only keys of this rule")
	words(&t.scope, "scope", "daemon: the server that answers, or all: every server on the same Redis", observe.ScopeDaemon, observe.ScopeAll)
	f.IntVar(&t.rows, "rows", 50, "at most so many rules and keys")
	f.DurationVar(&t.interval, "interval", time.Second, "time between two updates")
	f.BoolVar(&t.once, "once", false, "print once and exit")
	f.BoolVar(&t.json, "json", false, "print the server's responses as JSON, with --once")
}

// A choice is a flag whose value is one of some words, by default the first.
type choice struct {
	flag  string
	value *string
	words []string
}

func windowNames() (names []string) {
	for _, w := range observe.Windows {
		names = append(names, string(w))
	}
	return names
}

// check returns an error if a flag has no valid value.
func (t *topCommand) check() error {
	for _, c := range t.choices {
		if !slices.Contains(c.words, *c.value) {
			return fmt.Errorf("--%s: %q: want one of %v", c.flag, *c.value, c.words)
		}
	}
	const most, shortest = 1000, 100 * time.Millisecond
	switch {
	case t.rows < 1 || t.rows > most:
		return fmt.Errorf("--rows: %d: want 1 to %d", t.rows, most)
	case t.interval < shortest:
		return fmt.Errorf("--interval: %v: want at least %v", t.interval, shortest)
	case t.json && !t.once:
		return errors.New("--json: want --once with it")
	}
	return nil
}

func (t *topCommand) run(ctx context.Context, at *connection, out io.Writer) error {
	switch {
	case t.json:
		return t.printJSON(ctx, at, out)
	case t.once:
		return t.printOnce(ctx, at, out)
	}
	screen, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(screen.Fd())) || !term.IsTerminal(int(os.Stdin.Fd())) {
		return errors.New("standard input and output are not a terminal: want --once")
	}
	return t.interact(ctx, at, screen)
}

// topJSON is what --once --json prints: the server's responses as they are.
type topJSON struct {
	Live   json.RawMessage `json:"live"`
	Asked  json.RawMessage `json:"asked"`
	Denied json.RawMessage `json:"denied"`
}

func (t *topCommand) printJSON(ctx context.Context, at *connection, out io.Writer) error {
	var all topJSON
	err := t.getLive(ctx, at, &all.Live)
	if err == nil {
		err = t.getTop(ctx, at, observe.ByAsked, &all.Asked)
	}
	if err == nil {
		err = t.getTop(ctx, at, observe.ByDenied, &all.Denied)
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(all)
	if err == nil {
		printJSON(out, text)
	}
	return err
}

// The size of the picture where there is no terminal to ask.
const onceWidth, onceHeight = 100, 25

func (t *topCommand) printOnce(ctx context.Context, at *connection, out io.Writer) error {
	frame, err := t.fetch(ctx, at)
	if err != nil {
		return err
	}
	frame.width, frame.color = onceWidth, wantsColor(out)
	for _, line := range frame.lines() {
		fmt.Fprintln(out, line)
	}
	return nil
}

// fetch asks the server for what the view shows.
func (t *topCommand) fetch(ctx context.Context, at *connection) (*topFrame, error) {
	f := &topFrame{sort: t.sort}
	response := struct {
		*observe.Live
		FailedReload **adminapi.Reload `json:"failed_reload"`
	}{&f.live, &f.failedReload}
	err := t.getLive(ctx, at, &response)
	if err == nil && t.view == viewLive {
		compared := struct{ Candidates *[]adminapi.Candidate }{&f.candidates}
		_, err = at.admin(ctx, adminRequest{method: http.MethodGet, path: "/v1/candidates", query: queryOf("keys", "0")}, &compared)
	}
	if err == nil && t.view == viewKeys {
		f.top = &observe.Top{}
		err = t.getTop(ctx, at, t.by, f.top)
	}
	return f, err
}

func (t *topCommand) getLive(ctx context.Context, at *connection, into any) error {
	query := queryOf("window", t.window, "sort", t.sort, "scope", t.scope, "rules", strconv.Itoa(t.rows), "filter", t.filter)
	_, err := at.admin(ctx, adminRequest{method: http.MethodGet, path: "/v1/live", query: query}, into)
	return err
}

func (t *topCommand) getTop(ctx context.Context, at *connection, by string, into any) error {
	query := queryOf("by", by, "scope", t.scope, "n", strconv.Itoa(t.rows), "rule", t.rule)
	_, err := at.admin(ctx, adminRequest{method: http.MethodGet, path: "/v1/top", query: query}, into)
	return err
}
