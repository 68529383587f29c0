package main

import (
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/penstock-io/penstock/server/rules"
	"github.com/spf13/cobra"
)

// maxAdminResponse is more than any response of the admin API has: the longest lists all
// overrides.
const maxAdminResponse = 512 << 20

// A keyCommand peeks at one key, refunds units of it or resets it, by the admin API.
type keyCommand struct {
	connectFlags
	verb                     string
	domain, rule, key, limit string
	units                    int64
	reason                   string
	json                     bool
}

const whichKey = `
A key of a rule is named by --domain and the entries that requests send, or by --rule
and the values that the rule leaves open. A key under a limit that requests bring is
named by --limit and the key.

The command uses the admin API. It finds the listener by the server's settings: the
config file and the environment. If the server has a token, the command needs it.
`

func peekCommand() *cobra.Command {
	return (&keyCommand{verb: "peek"}).command(&cobra.Command{
		Short: "Show what remains of a key, and whether one unit would pass",
		Long: `Peek shows the state of one key of a running server without charging it.
` + whichKey + `
The exit code is 0 if a request for one unit would pass, 1 if it would be denied, and
2 if there is no answer.`,
		Example: `  penstock peek --domain shop user=42
  penstock peek --rule shop/user 42
  penstock peek user:42 --limit "10/1m"`,
	})
}

func refundCommand() *cobra.Command {
	k := &keyCommand{verb: "refund"}
	c := k.command(&cobra.Command{
		Short: "Refund units of a key",
		Long: `Refund returns units to one key of a running server, never more than were charged.
` + whichKey + `
The exit code is 0 if the server did so, and 2 if there is no answer.`,
		Example: `  penstock refund --domain shop user=42 --units 2 --reason "ticket 4711"
  penstock refund --rule shop/user 42 --reason "failed deployment"
  penstock refund user:42 --limit "10/1m" --reason test`,
	})
	c.Flags().Int64Var(&k.units, "units", 1, "units to refund")
	k.addReason(c)
	return c
}

func resetCommand() *cobra.Command {
	k := &keyCommand{verb: "reset"}
	c := k.command(&cobra.Command{
		Short: "Refund all units of a key",
		Long: `Reset returns all units to one key of a running server, so that it starts anew.
` + whichKey + `
The exit code is 0 if the server did so, and 2 if there is no answer.`,
		Example: `  penstock reset --domain shop user=42 --reason "ticket 4711"
  penstock reset --rule shop/user 42 --reason "failed deployment"
  penstock reset user:42 --limit "10/1m" --reason test`,
	})
	k.addReason(c)
	return c
}

func (k *keyCommand) addReason(c *cobra.Command) {
	c.Flags().StringVar(&k.reason, "reason", "", "why, for the server's audit log; required")
}

// command adds to a command what all verbs have.
func (k *keyCommand) command(c *cobra.Command) *cobra.Command {
	c.Use = fmt.Sprintf("%[1]s --domain DOMAIN KEY=VALUE... | %[1]s --rule RULE VALUE... | %[1]s KEY --limit LIMIT", k.verb)
	c.RunE = func(c *cobra.Command, args []string) error {
		query, err := k.query(args)
		if err != nil {
			return err
		}
		at, err := k.connect("admin")
		if err != nil {
			return err
		}
		return k.run(c.Context(), at, query, c.OutOrStdout())
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&k.domain, "domain", "", "domain of the rule")
	f.StringVar(&k.rule, "rule", "", "name of the rule, such as shop/user")
	f.StringVar(&k.key, "key", "", "the key, in place of arguments")
	f.StringVar(&k.limit, "limit", "", `limit that requests bring, such as "10/1m"`)
	f.BoolVar(&k.json, "json", false, "print the response as JSON")
	k.add(c, "admin")
	k.addToken(c)
	return c
}

// query returns the parameters of /v1/keys.
func (k *keyCommand) query(args []string) (url.Values, error) {
	named := 0
	for _, flag := range []string{k.domain, k.rule, k.limit} {
		if flag != "" {
			named++
		}
	}
	switch {
	case named != 1:
		return nil, fmt.Errorf("want one of --domain, --rule and --limit, as in penstock %s --domain shop user=42", k.verb)
	case k.key != "" && len(args) > 0:
		return nil, fmt.Errorf("unexpected argument %q beside --key: want one of them", args[0])
	case k.verb == "refund" && k.units < 1:
		return nil, fmt.Errorf("--units: %d: want 1 or more", k.units)
	case k.verb != "peek" && strings.TrimSpace(k.reason) == "":
		return nil, errors.New("want --reason, such as --reason \"ticket 4711\": the server writes it to its audit log")
	}
	query := url.Values{}
	if k.reason != "" {
		query.Set("reason", k.reason)
	}
	if k.verb == "refund" {
		query.Set("units", strconv.FormatInt(k.units, 10))
	}
	return query, k.setKey(query, args)
}

// setKey adds the parameters that identify the key.
func (k *keyCommand) setKey(query url.Values, args []string) error {
	key := k.key
	switch {
	case k.domain != "" && key == "":
		entries, err := parseEntries(args)
		if err != nil {
			return err
		}
		key = string(rules.AppendKey(nil, entries))
	case key == "":
		key = strings.Join(args, ",")
	}
	if k.limit != "" && (key == "" || len(args) > 1) {
		return fmt.Errorf("want one key, as in penstock %s user:42 --limit \"10/1m\"", k.verb)
	}
	for name, value := range map[string]string{"domain": k.domain, "rule": k.rule, "limit": k.limit, "key": key} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return nil
}

var keyMethods = map[string]string{"peek": http.MethodGet, "refund": http.MethodPost, "reset": http.MethodDelete}

// run sends the request and prints the response.
func (k *keyCommand) run(ctx context.Context, at *connection, query url.Values, w io.Writer) error {
	text, err := at.adminRequest(ctx, keyMethods[k.verb], "/v1/keys", query)
	if err != nil {
		return err
	}
	var state keyState
	if err := json.Unmarshal(text, &state); err != nil || state.Limit == "" {
		return fmt.Errorf("%s is not an admin listener: it returned %.200q", at.url, text)
	}
	if k.json {
		fmt.Fprintf(w, "%s\n", strings.TrimSpace(string(text)))
	} else {
		state.print(w, k)
	}
	if k.verb == "peek" && !state.WouldAllow && state.Mode != "shadow" {
		return errNegative
	}
	return nil
}

// adminRequest sends a request to the admin API and returns the body of its response.
func (at *connection) adminRequest(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	return at.adminUpload(ctx, method, path, query, "", nil)
}

// adminUpload is adminRequest with a body.
func (at *connection) adminUpload(ctx context.Context, method, path string, query url.Values, contentType string, body []byte) ([]byte, error) {
	u := at.url.JoinPath(path)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if at.token != "" {
		request.Header.Set("Authorization", "Bearer "+at.token)
	}
	response, err := at.client.Do(request)
	var failed *url.Error
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("%s: %w", at.url, failed.Err) // without the key
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAdminResponse))
	if err == nil && len(text) == maxAdminResponse {
		err = fmt.Errorf("the response is longer than %d bytes", maxAdminResponse)
	}
	if err == nil && response.StatusCode != http.StatusOK {
		err = at.adminError(response, text)
	}
	return text, err
}

// adminError returns the error of a response other than 200.
func (at *connection) adminError(response *http.Response, text []byte) error {
	var problem struct{ Title, Detail string }
	isProblem := json.Unmarshal(text, &problem) == nil && problem.Title != ""
	switch status := response.StatusCode; {
	case status == http.StatusUnauthorized && at.token == "":
		return errors.New("the server requires its token: set --token-file")
	case status == http.StatusUnauthorized:
		return errors.New("the server rejected the token: it is not the server's")
	case !isProblem:
		return at.notAdmin(response, text)
	case strings.HasPrefix(problem.Detail, "no such path"):
		return fmt.Errorf("%s is not an admin listener: it has no %s", at.url, response.Request.URL.Path)
	case status == http.StatusNotFound || status == http.StatusBadRequest:
		return errors.New(problem.Detail)
	default:
		return errors.New(strings.TrimSuffix(fmt.Sprintf("the server returned %d: %s", status, problem.Detail), ": "))
	}
}

// notAdmin returns the error of a response that the admin API does not give.
func (at *connection) notAdmin(response *http.Response, text []byte) error {
	return fmt.Errorf("%s is not an admin listener: it returned %s: %.200q", at.url, response.Status, strings.TrimSpace(string(text)))
}

// keyState is the response of /v1/keys.
type keyState struct {
	Rule       string    `json:"rule"`
	Mode       string    `json:"mode"`
	Limit      string    `json:"limit"`
	Key        string    `json:"key"`
	WouldAllow bool      `json:"would_allow"`
	RetryAfter *float64  `json:"retry_after"` // seconds; nil is never
	Override   *override `json:"override"`
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
	row := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, value) }
	if k.verb != "peek" {
		row("refunded", s.refunded(k))
	}
	if s.Rule != "" {
		row("rule", s.Rule)
	}
	row("key", s.Key)
	row("limit", withoutName(s.Limit))
	row("remaining", fmt.Sprintf("%d of %d", s.Decision.Remaining, s.Decision.Limit))
	row("one unit", s.oneUnit())
	if s.Override != nil {
		row("override", s.Override.describe())
	}
	if s.Decision.ResetAfter > 0 {
		row("full", "in "+seconds(s.Decision.ResetAfter))
	} else if s.Decision.Remaining > 0 {
		row("full", "now: nothing is charged to this key")
	}
	if s.Decision.Source != penstock.SourceStore.String() {
		row("source", s.Decision.Source)
	}
	_ = table.Flush() // fails only if the output is closed
}

func (s *keyState) refunded(k *keyCommand) string {
	n := -s.Decision.Granted
	switch {
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
