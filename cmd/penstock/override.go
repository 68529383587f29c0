package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
)

const overridesPath = "/v1/overrides"

const aboutOverrides = `
An override replaces the limit of a rule for one key: by another limit, by "unlimited",
or by "ban", for a time or for good. A ban or an exemption can also be for a range of
keys: those that begin with a text and a star, such as tenant-7:*, or whose last value
is an address of a network, such as 203.0.113.0/24. The override of the key itself
wins, then that of the smallest network, then that of the longest text.

The command uses the admin API. It finds the listener by the server's settings: the
config file and the environment. If the server has a token, the command needs it.`

func overrideCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "override",
		Short: "Give single keys of a rule another limit, none, or a ban",
		Long:  "Override gives single keys another limit, while the server runs.\n" + aboutOverrides,
		Args:  unknownCommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	group.AddCommand(overrideSetCommand(), overrideListCommand(), overrideDeleteCommand(), overrideImportCommand(), overrideExportCommand())
	return group
}

// An overrideSubcommand is one of the commands on overrides.
type overrideSubcommand struct {
	connectFlags
	reason, duration, until, rule, key, format, domain string
	json                                               bool
}

func overrideSetCommand() *cobra.Command {
	o := &overrideSubcommand{}
	c := &cobra.Command{
		Use:   "set RULE KEY LIMIT | set --domain DOMAIN KEY=VALUE... LIMIT",
		Short: "Set the override of a key",
		Long: `Set replaces the limit of a rule for one key. What the key has used counts under the new
limit, too. All servers on the same Redis know of it within a second. Further limits of
the rule (also) stay as they are, unless the key is banned or unlimited.
` + aboutOverrides,
		Example: `  penstock override set shop/user 42 600/1m --reason "ticket 4711"
  penstock override set shop/user 42 ban --for 24h --reason abuse
  penstock override set --domain shop path=/login remote_address=203.0.113.0/24 ban --reason "ticket 4712"
  penstock override set shop/user 'tenant-7:*' unlimited --reason "load test"`,
	}
	o.addTarget(c, "LIMIT")
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the list and for the server's audit log; required")
	c.Flags().StringVar(&o.duration, "for", "", "how long, such as 10m or 24h; by default for good")
	c.Flags().StringVar(&o.until, "until", "", "until when, such as 2026-03-04T12:00:00Z")
	return o.command(c, "admin", o.set)
}

// addTarget adds the flags that name the rule and the key of an override, and checks the arguments: those, and what
// follows them.
func (o *overrideSubcommand) addTarget(c *cobra.Command, more ...string) {
	c.Flags().StringVar(&o.rule, "rule", "", "name of the rule, in place of the argument")
	c.Flags().StringVar(&o.domain, "domain", "", "domain of the rule, whose entries name the key as for peek")
	c.Args = func(c *cobra.Command, args []string) error {
		switch {
		case o.domain != "" && o.rule != "":
			return errors.New("--domain and --rule: want one of them")
		case o.domain != "" && len(args) < 1+len(more), o.domain == "" && o.rule == "":
			if o.domain != "" {
				return wantArgs(append([]string{"KEY=VALUE"}, more...)...)(c, args)
			}
			return wantArgs(append([]string{"RULE", "KEY"}, more...)...)(c, args)
		case o.rule != "":
			return wantArgs(append([]string{"KEY"}, more...)...)(c, args)
		}
		return nil
	}
}

// target returns the rule and the key of an override, and the arguments after them. The server says which rule
// entries of a domain mean: its name has other escapes than they.
func (o *overrideSubcommand) target(c *cobra.Command, at *connection, args []string, more int) (rule, key string, rest []string, err error) {
	named, rest := args[:len(args)-more], args[len(args)-more:]
	switch {
	case o.rule != "":
		return o.rule, named[0], rest, nil
	case o.domain == "":
		return named[0], named[1], rest, nil
	}
	entries, err := parseEntries(named)
	if err != nil {
		return "", "", nil, err
	}
	var found adminapi.Explanation
	query := queryOf("domain", o.domain, "key", string(rules.AppendKey(nil, entries)))
	if _, err = at.admin(c.Context(), adminRequest{method: http.MethodGet, path: "/v1/explain", query: query}, &found); err != nil {
		return "", "", nil, err
	}
	if found.Rule == nil {
		return "", "", nil, fmt.Errorf("no rule of domain %.200q applies to %.200q", o.domain, strings.Join(named, " "))
	}
	return *found.Rule, strings.Join(named, ","), rest, nil
}

func (o *overrideSubcommand) set(c *cobra.Command, at *connection, args []string) error {
	rule, key, rest, err := o.target(c, at, args, 1)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]string{
		"rule": rule, "key": key, "limit": rest[0], "reason": o.reason, "for": o.duration, "until": o.until,
	})
	if err != nil {
		return err
	}
	return o.put(c, at, "application/json", body)
}

// put sets the overrides of a body, and prints how many those were.
func (o *overrideSubcommand) put(c *cobra.Command, at *connection, contentType string, body []byte) error {
	var changed struct {
		Set  int
		Note string
	}
	r := adminRequest{http.MethodPut, overridesPath, queryOf("reason", o.reason), contentType, body}
	if _, err := at.admin(c.Context(), r, &changed); err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "set: %s\n", plural(changed.Set, "override"))
	if changed.Note != "" {
		fmt.Fprintf(c.OutOrStdout(), "note: %s\n", printable(changed.Note))
	}
	return nil
}

func overrideDeleteCommand() *cobra.Command {
	o := &overrideSubcommand{}
	c := &cobra.Command{
		Use:     "delete RULE KEY | delete --domain DOMAIN KEY=VALUE...",
		Short:   "End the override of a key",
		Example: `  penstock override delete shop/user 42 --reason "ticket 4711"`,
	}
	o.addTarget(c)
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the server's audit log; required")
	return o.command(c, "admin", func(c *cobra.Command, at *connection, args []string) error {
		rule, key, _, err := o.target(c, at, args, 0)
		if err != nil {
			return err
		}
		query := url.Values{"rule": {rule}, "key": {key}, "reason": {o.reason}}
		if _, err := at.admin(c.Context(), adminRequest{method: http.MethodDelete, path: overridesPath, query: query}, nil); err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), "deleted: 1 override")
		return nil
	})
}

func overrideImportCommand() *cobra.Command {
	o := &overrideSubcommand{}
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Set up to 10,000 overrides from a file, all or none",
		Long: `Import sets the overrides of a file, all or none, and leaves others as they are. The file
is JSON, {"overrides": [...]}, or CSV with the columns rule, key, limit, and if wanted
until, for and reason. What export writes can be imported. A dash is the standard input.`,
		Example: `  penstock override import plans.csv --reason "plan change 12"
  penstock override export | penstock override import - --server http://10.0.0.7:6070`,
		Args: wantArgs("FILE"),
	}
	c.Flags().StringVar(&o.reason, "reason", "", "why, for overrides of the file without a reason")
	return o.command(c, "admin", func(c *cobra.Command, at *connection, args []string) error {
		text, err := readInput(c, args[0])
		if err != nil {
			return err
		}
		contentType := "text/csv"
		if strings.HasPrefix(strings.TrimSpace(string(text)), "{") {
			contentType = "application/json"
		}
		return o.put(c, at, contentType, text)
	})
}

func readInput(c *cobra.Command, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(c.InOrStdin())
	}
	return os.ReadFile(path)
}

func overrideExportCommand() *cobra.Command {
	o := &overrideSubcommand{}
	c := &cobra.Command{
		Use:   "export",
		Short: "Print all overrides, as import reads them",
		Example: `  penstock override export > overrides.json
  penstock override export --format csv > overrides.csv`,
		Args: noArgs,
	}
	c.Flags().StringVar(&o.format, "format", "json", "json or csv")
	completeFlag(c, "format", "format", []string{"json", "csv"})
	o.addFilter(c)
	return o.command(c, "admin", func(c *cobra.Command, at *connection, _ []string) error {
		text, err := o.fetch(c.Context(), at, o.format, nil)
		if err == nil && o.format == "json" {
			printJSON(c.OutOrStdout(), text)
		} else if err == nil {
			_, err = c.OutOrStdout().Write(textFor(text, isTerminal(c.OutOrStdout())))
		}
		return err
	})
}

// textFor returns a text as a file has it, or a terminal, which would act on control characters in keys.
func textFor(text []byte, terminal bool) []byte {
	if !terminal {
		return text
	}
	lines := strings.Split(string(text), "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return []byte(strings.Join(lines, "\n"))
}

func (o *overrideSubcommand) addFilter(c *cobra.Command) {
	c.Flags().StringVar(&o.rule, "rule", "", "only those of this rule")
	c.Flags().StringVar(&o.key, "key", "", "only that of this key; needs --rule")
}

// fetch returns the overrides as the server lists them.
func (o *overrideSubcommand) fetch(ctx context.Context, at *connection, format string, into any) ([]byte, error) {
	query := queryOf("format", format, "rule", o.rule, "key", o.key)
	return at.admin(ctx, adminRequest{method: http.MethodGet, path: overridesPath, query: query}, into)
}

func overrideListCommand() *cobra.Command {
	o := &overrideSubcommand{}
	c := &cobra.Command{
		Use:   "list",
		Short: "List the overrides in force",
		Long: `List shows the overrides in force, and when a server last applied each to a request. Servers
on the same Redis have the same overrides, and tell each other once a minute which they used.`,
		Example: `  penstock override list
  penstock override list --rule shop/user --key 42`,
		Args: noArgs,
	}
	o.addFilter(c)
	c.Flags().BoolVar(&o.json, "json", false, "print the response as JSON")
	return o.command(c, "admin", o.list)
}

func (o *overrideSubcommand) list(c *cobra.Command, at *connection, _ []string) error {
	var list struct{ Overrides []adminapi.Override }
	text, err := o.fetch(c.Context(), at, "json", &list)
	if err != nil {
		return err
	}
	if o.json {
		printJSON(c.OutOrStdout(), text)
		return nil
	}
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RULE\tKEY\tLIMIT\tUNTIL\tLAST USED\tREASON")
	for _, v := range list.Overrides {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", printable(v.Rule), printable(v.Key), v.Limit, timeOr(v.Until, "for good"), timeOr(v.LastUsed, "never"), printable(reasonText(&v)))
	}
	return table.Flush()
}

// reasonText returns why an override is there.
func reasonText(o *adminapi.Override) string {
	if o.Strikes > 1 {
		return fmt.Sprintf("%s (ban %d in a row)", o.Reason, o.Strikes)
	}
	return o.Reason
}

// deleteCommand returns the command that ends an override. A word that begins with a minus would be a flag.
func deleteCommand(rule, key string) string {
	words := shellWord(rule) + " " + shellWord(key)
	if strings.HasPrefix(rule, "-") || strings.HasPrefix(key, "-") {
		return "penstock override delete --reason … -- " + words
	}
	return "penstock override delete " + words + " --reason …"
}

var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// shellWord returns a text as a word of a command line. One that cannot be printed has no such form.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(printable(text), "'", `'\''`) + "'"
}

func timeOr(t time.Time, zero string) string {
	if t.IsZero() {
		return zero
	}
	return t.Format(time.RFC3339)
}
