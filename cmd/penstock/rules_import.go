package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/penstock-io/penstock/internal/sentinelrules"
	"github.com/penstock-io/penstock/rules"
	"github.com/spf13/cobra"
)

func importCommand() *cobra.Command {
	var from, domain string
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Convert the rules of another limiter to a rule file",
		Long: `Import prints a rule file made of the flow, hot-spot and isolation rules of Sentinel,
in the JSON of its Go or Java version: a list of rules, or an object of such lists. On
standard error it lists what has no equivalent, and what differs. The exit code is 1
if no rule could be converted.`,
		Example: `  penstock rules import --from sentinel flow.json > rules.yaml`,
		Args:    wantArgs("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			if from != "sentinel" {
				return fmt.Errorf("--from %q: want sentinel", from)
			}
			return importSentinel(c, args[0], domain)
		},
	}
	c.Flags().StringVar(&from, "from", "", "whose rules they are: sentinel")
	c.Flags().StringVar(&domain, "domain", "sentinel", "domain of the rule file")
	return c
}

func importSentinel(c *cobra.Command, path, domain string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.Size() > rules.MaxFileBytes:
		return fmt.Errorf("%s: %d bytes: at most %d are allowed", path, info.Size(), rules.MaxFileBytes)
	case domain == "":
		return errors.New("--domain: must not be empty")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	converted, err := sentinelrules.Convert(text, domain)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, note := range converted.Notes {
		fmt.Fprintln(c.ErrOrStderr(), "note:", printable(note))
	}
	if converted.Rules == 0 {
		return errNegative
	}
	_, err = c.OutOrStdout().Write(textFor(converted.File, isTerminal(c.OutOrStdout())))
	return err
}
