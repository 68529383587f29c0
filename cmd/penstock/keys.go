package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/spf13/cobra"
)

// A keyCommand peeks at one key, refunds units of it or resets it, by the admin API.
type keyCommand struct {
	connectFlags
	verb, method             string
	domain, rule, key, limit string
	units                    int64
	reason                   string
	json                     bool
	query                    url.Values // of the request
}

const whichKey = `

A key of a rule is named by --domain and the entries that requests send, or by --rule
and the values that the rule leaves open. A key under a limit that requests bring is
named by --limit and the key. If the rule has further limits (also), all of them are
meant, and the tightest is shown first; --rule sms/phone//day is one of them alone.

The command uses the admin API. It finds the listener by the server's settings: the
config file and the environment. If the server has a token, the command needs it.

`

const exitOfReturn = `The exit code is 0 if the server did so, 1 if it did, but the key stays banned, and 2 if
there is no answer.`

func peekCommand() *cobra.Command {
	return (&keyCommand{verb: "peek", method: http.MethodGet}).command(&cobra.Command{
		Short: "Show what remains of a key, and whether one unit would pass",
		Long: "Peek shows the state of one key of a running server without charging it." + whichKey +
			`The exit code is 0 if a request for one unit would pass, 1 if it would be denied, and
2 if there is no answer.`,
		Example: `  penstock peek --domain shop user=42
  penstock peek --rule shop/user 42
  penstock peek user:42 --limit "10/1m"`,
	})
}

func refundCommand() *cobra.Command {
	return (&keyCommand{verb: "refund", method: http.MethodPost}).command(&cobra.Command{
		Short: "Refund units of a key",
		Long: "Refund returns units to one key of a running server, never more than were charged." + whichKey +
			exitOfReturn,
		Example: `  penstock refund --domain shop user=42 --units 2 --reason "ticket 4711"
  penstock refund --rule shop/user 42 --reason "failed deployment"
  penstock refund user:42 --limit "10/1m" --reason test`,
	})
}

func resetCommand() *cobra.Command {
	return (&keyCommand{verb: "reset", method: http.MethodDelete}).command(&cobra.Command{
		Short: "Refund all units of a key",
		Long: "Reset returns all units to one key of a running server, so that it starts anew." + whichKey +
			exitOfReturn,
		Example: `  penstock reset --domain shop user=42 --reason "ticket 4711"
  penstock reset --rule shop/user 42 --reason "failed deployment"
  penstock reset user:42 --limit "10/1m" --reason test`,
	})
}

// command adds to a command what all verbs have.
func (k *keyCommand) command(c *cobra.Command) *cobra.Command {
	c.Use = fmt.Sprintf("%[1]s --domain DOMAIN KEY=VALUE... | %[1]s --rule RULE VALUE... | %[1]s KEY --limit LIMIT", k.verb)
	c.PreRunE = k.parse
	f := c.Flags()
	f.StringVar(&k.domain, "domain", "", "domain of the rule")
	f.StringVar(&k.rule, "rule", "", "name of the rule, such as shop/user")
	f.StringVar(&k.key, "key", "", "the key, in place of arguments")
	f.StringVar(&k.limit, "limit", "", `limit that requests bring, such as "10/1m"`)
	f.BoolVar(&k.json, "json", false, "print the response as JSON")
	k.connectFlags.command(c, "admin", k.run)
	if k.verb == "refund" {
		f.Int64Var(&k.units, "units", 1, "units to refund")
	}
	if k.verb != "peek" {
		f.StringVar(&k.reason, "reason", "", "why, for the server's audit log; required")
	}
	return c
}

// parse sets the parameters of /v1/keys.
func (k *keyCommand) parse(_ *cobra.Command, args []string) (err error) {
	switch named := len(queryOf("domain", k.domain, "rule", k.rule, "limit", k.limit)); {
	case named != 1:
		return fmt.Errorf("want one of --domain, --rule and --limit, as in penstock %s --domain shop user=42", k.verb)
	case k.key != "" && len(args) > 0:
		return fmt.Errorf("unexpected argument %q beside --key: want one of them", args[0])
	case k.verb == "refund" && k.units < 1:
		return fmt.Errorf("--units: %d: want 1 or more", k.units)
	case k.verb != "peek" && strings.TrimSpace(k.reason) == "":
		return errors.New("want --reason, such as --reason \"ticket 4711\": the server writes it to its audit log")
	case k.domain != "" && k.key == "":
		var entries []rules.Entry
		entries, err = parseEntries(args)
		k.key = string(rules.AppendKey(nil, entries))
	case k.key == "":
		k.key = strings.Join(args, ",")
	}
	if k.limit != "" && (k.key == "" || len(args) > 1) {
		return fmt.Errorf("want one key, as in penstock %s user:42 --limit \"10/1m\"", k.verb)
	}
	k.query = queryOf("domain", k.domain, "rule", k.rule, "limit", k.limit, "key", k.key, "reason", k.reason)
	if k.verb == "refund" {
		k.query.Set("units", strconv.FormatInt(k.units, 10))
	}
	return err
}

// run sends the request and prints the response.
func (k *keyCommand) run(c *cobra.Command, at *connection, _ []string) error {
	var state keyState
	text, err := at.admin(c.Context(), adminRequest{method: k.method, path: "/v1/keys", query: k.query}, &state)
	if err != nil {
		return err
	}
	if state.Limit == "" {
		return at.notJSON(text)
	}
	if k.json {
		printJSON(c.OutOrStdout(), text)
	} else {
		state.print(c.OutOrStdout(), k)
	}
	if (k.verb == "peek" || state.isBanned()) && !state.WouldAllow && state.Mode != "shadow" {
		return errNegative
	}
	return nil
}

func (s *keyState) isBanned() bool { return s.Override != nil && s.Override.Limit == "ban" }

// keyState is the response of /v1/keys.
type keyState struct {
	adminapi.KeyState
	Also       []keyState `json:"also"`
	RetryAfter *float64   `json:"retry_after"` // seconds; nil is never
	Decision   struct {
		Granted    int64   `json:"granted"`
		Limit      int64   `json:"limit"`
		Remaining  int64   `json:"remaining"`
		ResetAfter float64 `json:"reset_after"`
		Source     string  `json:"source"`
	} `json:"decision"`
}

// print prints the state for people to read.
func (s *keyState) print(w io.Writer, k *keyCommand) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, printable(value)) }
	if k.verb != "peek" {
		row("refunded", s.refunded(k))
	}
	if s.Rule != "" {
		row("rule", s.Rule)
	}
	row("key", s.Key)
	row("limit", withoutName(s.Limit))
	row("remaining", s.left())
	row("one unit", s.oneUnit())
	if s.Override != nil {
		o := s.Override
		row("override", fmt.Sprintf("%s of %s, until %s: %s", o.Limit, o.Key, timeOr(o.Until, "deleted"), reasonText(o)))
		fmt.Fprintf(table, "to end it\t%s\n", deleteCommand(o.Rule, o.Key))
	}
	switch {
	case s.isBanned(): // whatever is left
	case s.Decision.ResetAfter > 0:
		row("full", "in "+seconds(s.Decision.ResetAfter))
	case s.Decision.Remaining > 0 && s.Decision.Source != penstock.SourceFallback.String():
		row("full", "now: nothing is charged to this key")
	}
	for i := range s.Also {
		row("also", s.Also[i].summary(k))
	}
	switch source := s.Decision.Source; source {
	case penstock.SourceStore.String():
	case penstock.SourceFallback.String():
		row("source", source+": the store is unavailable, and what it has counted is neither seen nor changed here")
	default:
		row("source", source)
	}
	_ = table.Flush() // fails only if the output is closed
}

// summary returns the state under another limit of the rule in one line.
func (s *keyState) summary(k *keyCommand) string {
	text := fmt.Sprintf("%s, %s: ", s.Rule, withoutName(s.Limit))
	if k.verb != "peek" {
		text += fmt.Sprintf("refunded %d, ", -s.Decision.Granted)
	}
	text += s.left() + " left, one unit " + s.oneUnit()
	if s.Override != nil {
		text += fmt.Sprintf("; override %s of %s", s.Override.Limit, s.Override.Key)
	}
	return text
}

func (s *keyState) left() string {
	return fmt.Sprintf("%d of %d", s.Decision.Remaining, s.Decision.Limit)
}

func (s *keyState) refunded(k *keyCommand) string {
	n := -s.Decision.Granted
	switch {
	case n == 0 && s.Decision.Source == penstock.SourceFallback.String():
		return "0: nothing was charged to this key since the store is unavailable"
	case n == 0:
		return "0: nothing was charged to this key"
	case n < k.units:
		return fmt.Sprintf("%d of %d: no more were charged", n, k.units)
	}
	return strconv.FormatInt(n, 10)
}

func (s *keyState) oneUnit() string {
	text := "would pass"
	switch {
	case s.WouldAllow:
	case s.RetryAfter == nil:
		text = "denied, always"
	default:
		text = "denied, passes in " + seconds(*s.RetryAfter)
	}
	if s.Mode == "shadow" && !s.WouldAllow {
		text += "; not enforced, the rule is in shadow mode"
	}
	return text
}

// withoutName returns a limit without its name, which for a rule is the rule's.
func withoutName(text string) string {
	l, err := penstock.ParseLimit(text)
	if err != nil {
		return text
	}
	return l.WithName("").String()
}

// seconds returns a number of seconds as a duration, to the millisecond.
func seconds(n float64) string {
	return max(time.Millisecond, time.Duration(n*float64(time.Second)).Round(time.Millisecond)).String()
}
