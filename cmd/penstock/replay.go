package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/accesslog"
	"github.com/penstock-io/penstock/server/replay"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// replayFlags are the flags of penstock replay as they are given.
type replayFlags struct {
	rules, compare string
	loading        rules.Options
	entries        []string
	fields         []string
	failIf         []string
	suggest        string
	html           string
	json           bool
	options        replay.Options
}

func replayCommand() *cobra.Command {
	f := &replayFlags{}
	c := &cobra.Command{
		Use:   "replay LOG...",
		Short: "Show what rules would have done to the requests of an access log",
		Long: `Replay decides the requests of access logs by the rules, with the engine of the server,
in virtual time. A log is a file, plain or gzip, a directory of recordings of penstock
serve --record, or - for standard input. Several are merged by time.

Formats, by the first lines: ` + strings.Join(accesslog.FormatNames(), ", ") + `.
Entries of the rules get their values from the log by their names, such as
remote_address, path, method, host and user; --entry says where others are:
field:NAME, address:NAME (an address, IPv6 by /64), or the value itself. Names are
` + strings.Join(accesslog.Fields, ", ") + `,
and in a JSON log any name of it, such as request.headers.X-User.

Conditions of --fail-if: "denied > 0.1%", "newly denied > 0", "denied keys > 5",
"not understood > 1%", each after "rule NAME" for one rule, "denies key PATTERN" and "does not deny key PATTERN".
The exit code is 1 if one is met.`,
		Example: `  penstock replay access.log --rules rules.yaml
  penstock replay access.log --rules new.yaml --compare rules.yaml --fail-if "newly denied > 0.1%"
  penstock replay access.log --rules rules.yaml --suggest 99.9% --html report.html`,
		Args: wantArgs("LOG..."),
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args) },
	}
	f.addTo(c.Flags())
	return c
}

func (f *replayFlags) addTo(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&f.rules, "rules", "", "rule file, or directory of rule files, to try")
	flags.StringVar(&f.compare, "compare", "", "rules in force, to show what changes")
	flags.BoolVar(&f.loading.MergeDomains, "merge-domains", false, "allow several rule files to define one domain")
	flags.StringVar(&f.options.Domain, "domain", "", "domain of the requests, if the rules have several")
	flags.StringArrayVar(&f.entries, "entry", nil, "value of an entry: KEY=field:NAME, KEY=address:NAME or KEY=VALUE; repeatable")
	flags.StringVar(&f.options.Log.Format, "format", "", "format of the logs; default: by their first lines")
	flags.StringArrayVar(&f.fields, "field", nil, "name in a JSON log of time, address, method, …: address=client.ip; repeatable")
	flags.StringVar(&f.suggest, "suggest", "", "suggest limits under which this share of the keys is never denied, such as 99.9%, or \"99.9% of requests\"")
	flags.StringArrayVar(&f.failIf, "fail-if", nil, "condition under which the exit code is 1; repeatable")
	flags.IntVar(&f.options.MaxKeys, "max-keys", 1_000_000, "maximum number of keys to count; the report says by how much more it may be wrong")
	flags.IntVar(&f.options.TopKeys, "top", 10, "how many of the most denied keys to print for each rule")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
	flags.StringVar(&f.html, "html", "", "also write the report to this file, as a page with pictures")
}

func (f *replayFlags) run(c *cobra.Command, logs []string) error {
	if err := f.parse(); err != nil {
		return err
	}
	tuneGC()
	clearProgress := f.showProgress(c.ErrOrStderr())
	report, err := replay.Run(c.Context(), logs, f.options)
	clearProgress()
	if err != nil {
		return err
	}
	if err := f.print(c.OutOrStdout(), report); err != nil {
		return err
	}
	if len(report.Failures) > 0 {
		return errNegative
	}
	return nil
}

// parse sets the options.
func (f *replayFlags) parse() (err error) {
	o := &f.options
	if f.rules == "" {
		return fmt.Errorf("missing --rules: which rules to try")
	}
	if o.Log.Format != "" && !accesslog.HasFormat(o.Log.Format) {
		return fmt.Errorf("--format: %q: want %s", o.Log.Format, strings.Join(accesslog.FormatNames(), ", "))
	}
	if o.Rules, err = rules.Load(f.rules, &f.loading); err != nil {
		return err
	}
	if f.compare != "" {
		if o.Compare, err = rules.Load(f.compare, &f.loading); err != nil {
			return err
		}
	}
	if f.suggest != "" {
		text, of, _ := strings.Cut(f.suggest, " of ")
		if o.SuggestByRequests = of == "requests"; of != "" && of != "keys" && !o.SuggestByRequests {
			return fmt.Errorf("--suggest: %q: want 99.9%%, or 99.9%% of requests", f.suggest)
		}
		if o.Suggest, err = parseShare(text); err != nil {
			return fmt.Errorf("--suggest: %w", err)
		}
	}
	return cmp.Or(f.parsePairs(), f.parseConditions())
}

func (f *replayFlags) parsePairs() error {
	for _, text := range f.entries {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" || value == "" {
			return fmt.Errorf("--entry: %q: want KEY=field:NAME or KEY=VALUE", text)
		}
		f.options.Log.Entries = append(f.options.Log.Entries, accesslog.Entry{Key: key, Value: value})
	}
	f.options.Log.Names = map[string]string{}
	for _, text := range f.fields {
		name, path, ok := strings.Cut(text, "=")
		if !ok || path == "" {
			return fmt.Errorf("--field: %q: want NAME=PATH, such as address=client.ip", text)
		}
		f.options.Log.Names[name] = path
	}
	return nil
}

func (f *replayFlags) parseConditions() error {
	for _, text := range f.failIf {
		condition, err := replay.ParseCondition(text)
		if err == nil {
			err = condition.CheckRules(&f.options)
		}
		if err != nil {
			return fmt.Errorf("--fail-if: %w", err)
		}
		f.options.FailIf = append(f.options.FailIf, condition)
	}
	return nil
}

// parseShare parses a percentage.
func parseShare(text string) (float64, error) {
	number, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if err != nil || !ok || !(percent > 0 && percent <= 100) {
		return 0, fmt.Errorf("%q: want a percentage, such as 99.9%%", text)
	}
	return percent / 100, nil
}

func (f *replayFlags) print(w io.Writer, report *replay.Report) error {
	if f.html != "" {
		if err := writeHTML(f.html, report); err != nil {
			return err
		}
	}
	if f.json {
		text, err := json.Marshal(report)
		if err == nil {
			printJSON(w, text)
		}
		return err
	}
	return report.Text(w)
}

func writeHTML(name string, report *replay.Report) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return cmp.Or(report.HTML(file), file.Close())
}

// showProgress prints how far the replay is, if the output is a terminal.
func (f *replayFlags) showProgress(w io.Writer) (clearLine func()) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	f.options.OnProgress = func(requests, read, size int64) {
		fmt.Fprintf(w, "\r%d requests", requests)
		if size > 0 {
			fmt.Fprintf(w, ", %d%%", 100*read/size)
		}
	}
	return func() { fmt.Fprint(w, "\r\x1b[K") }
}
