package main

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/server/rules"
	"github.com/spf13/cobra"
)

func rulesCommand() *cobra.Command {
	var o rules.Options
	group := &cobra.Command{
		Use:   "rules",
		Short: "Check and explain rule files",
		Args:  unknownCommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	group.PersistentFlags().BoolVar(&o.MergeDomains, "merge-domains", false, "allow several rule files to define one domain")
	group.AddCommand(checkCommand(&o), explainCommand(&o))
	return group
}

func checkCommand(o *rules.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "check PATH",
		Short: "Validate rule files",
		Long: `Check reads a rule file, or all files in a directory, as the server does, and
prints the file, line and reason of each problem. The exit code is 0 if the rules
are valid, 1 if they are not, and 2 if they cannot be read. It warns of settings
without effect, and of rules that the server rejects while the gRPC listener is
enabled.`,
		Example: `  penstock rules check rules.yaml
  penstock rules check /etc/penstock/rules`,
		Args: wantArgs("PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			set, err := rules.NewSource(args[0], o).Load()
			if wrong := rules.Errors(nil); errors.As(err, &wrong) {
				fmt.Fprintln(c.ErrOrStderr(), err)
				return errNegative
			}
			if err != nil {
				return err
			}
			warnings := set.Warnings()
			if wrong := rules.Errors(nil); errors.As(set.CheckEnvoy(), &wrong) {
				warnings = append(warnings, wrong...)
			}
			for _, w := range warnings {
				fmt.Fprintf(c.ErrOrStderr(), "warning: %v\n", w)
			}
			fmt.Fprintf(c.OutOrStdout(), "ok: %s, %s\n", plural(len(set.Domains()), "domain"), plural(len(set.Rules()), "rule"))
			return nil
		},
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func explainCommand(o *rules.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "explain PATH DOMAIN KEY=VALUE...",
		Short: "Show which rule applies to a request, and why",
		Long: `Explain prints which rule applies to a descriptor with these entries, and why other
rules do not.`,
		Example: `  penstock rules explain rules.yaml shop user=42
  penstock rules explain rules.yaml shop path=/login remote_address=203.0.113.9`,
		Args: wantArgs("PATH", "DOMAIN", "KEY=VALUE..."),
		RunE: func(c *cobra.Command, args []string) error {
			set, err := rules.NewSource(args[0], o).Load()
			if err != nil {
				return err
			}
			entries, err := parseEntries(args[2:])
			if err != nil {
				return err
			}
			fmt.Fprint(c.OutOrStdout(), set.Explain(args[1], entries))
			return nil
		},
	}
}
