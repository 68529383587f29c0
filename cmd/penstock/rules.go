package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock-io/penstock/internal/atomicfile"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server"
	"github.com/spf13/cobra"
)

func rulesCommand() *cobra.Command {
	var o rules.Options
	group := &cobra.Command{
		Use:   "rules",
		Short: "Check, explain, seal and import rule files",
		Args:  unknownCommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	group.PersistentFlags().BoolVar(&o.MergeDomains, "merge-domains", false, "allow several rule files to define one domain")
	group.AddCommand(checkCommand(&o), explainCommand(&o), sealCommand(), importCommand())
	return group
}

func checkCommand(o *rules.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "check PATH",
		Short: "Validate rule files",
		Long: `Check reads a rule file, or all files in a directory, as the server does, and
prints the file, line and reason of each problem. The exit code is 0 if the rules
are valid, 1 if they are not, and 2 if they cannot be read. It warns of settings
without effect, and of limits without a count.`,
		Example: `  penstock rules check rules.yaml
  penstock rules check /etc/penstock/rules`,
		Args: wantArgs("PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			set, err := rules.Load(args[0], o)
			if wrong := rules.Errors(nil); errors.As(err, &wrong) {
				printLines(c.ErrOrStderr(), wrong)
				return errNegative
			}
			if err != nil {
				return err
			}
			for _, w := range set.Warnings() {
				fmt.Fprintln(c.ErrOrStderr(), "warning:", printable(w.Error()))
			}
			fmt.Fprintf(c.OutOrStdout(), "ok: %s, %s\n", plural(len(set.Domains()), "domain"), plural(len(set.Rules()), "rule"))
			return nil
		},
	}
}

// printLines prints problems, one on each line: names of files come from whoever wrote the directory.
func printLines(to io.Writer, wrong rules.Errors) {
	for _, problem := range wrong {
		fmt.Fprintln(to, printable(problem.Error()))
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func explainCommand(o *rules.Options) *cobra.Command {
	var regions int
	var roundTrip time.Duration
	c := &cobra.Command{
		Use:   "explain PATH DOMAIN KEY=VALUE...",
		Short: "Show which rule applies to a request, and why",
		Long: `Explain prints which rule applies to a descriptor with these entries, and why other
rules do not. Of a global limit it prints what each region holds, if it knows how many
there are.`,
		Example: `  penstock rules explain rules.yaml shop user=42
  penstock rules explain rules.yaml shop path=/login remote_address=203.0.113.9`,
		Args: wantArgs("PATH", "DOMAIN", "KEY=VALUE..."),
		PreRunE: func(*cobra.Command, []string) error {
			if regions < 0 || roundTrip <= 0 {
				return fmt.Errorf("--regions %d, --round-trip %v: want numbers above zero", regions, roundTrip)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			set, err := rules.Load(args[0], o)
			if err != nil {
				return err
			}
			entries, err := parseEntries(args[2:])
			if err != nil {
				return err
			}
			x := set.Explain(args[1], entries)
			x.Regions = server.DescribeRegions(x.Rule, regions, roundTrip)
			fmt.Fprint(c.OutOrStdout(), x)
			return nil
		},
	}
	c.Flags().IntVar(&regions, "regions", 0, "how many regions share a global limit")
	c.Flags().DurationVar(&roundTrip, "round-trip", 250*time.Millisecond, "longest round trip from any region to the home region")
	return c
}

func sealCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "seal FILE...",
		Short: "Add a checksum to rule files, so that an incomplete copy never takes effect",
		Long: `Seal writes "# sha256: HEX" as the first line of each file, or renews that line. HEX
is the checksum of all bytes after it. The server uses a sealed file as soon as the
checksum matches, and never before; other files must stay unchanged for a second.
Each file is replaced by a rename.`,
		Example: `  penstock rules seal rules.yaml`,
		Args:    wantArgs("FILE..."),
		RunE: func(_ *cobra.Command, args []string) error {
			for _, name := range args {
				if err := sealFile(name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// sealFile replaces a file, or the file that a link leads to, by a sealed one.
func sealFile(name string) error {
	path, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() { // reading a pipe would wait for its writer
		return fmt.Errorf("%s: not a regular file", name)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return atomicfile.Replace(path, rules.Seal(text), info.Mode().Perm())
}
