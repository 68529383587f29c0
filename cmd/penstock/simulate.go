package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/penstock-io/penstock/server/simulator"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func simulateCommand() *cobra.Command {
	var traffic string
	var raw bool
	simulate := &cobra.Command{
		Use:   "simulate LIMIT",
		Short: "Show what a limit does to traffic, under every algorithm",
		Long: `Simulate runs traffic through a limit, and through the other algorithms with the same
numbers, in virtual time. For each it draws the units that passed and those that were
denied, and says how many passed within any one period. An asterisk marks the limit
as written.

Traffic is one of:
` + trafficHelp(),
		Example: `  penstock simulate "10/1s"
  penstock simulate "10/1s burst=5" --traffic edge
  penstock simulate "5/day zone=Asia/Shanghai fixed-window" --traffic burst --json`,
		Args: wantArgs("LIMIT"),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := simulator.Run(args[0], traffic)
			if err != nil {
				return err
			}
			if raw {
				return json.NewEncoder(c.OutOrStdout()).Encode(s)
			}
			s.Draw(c.OutOrStdout(), wantsColor(c.OutOrStdout()))
			return nil
		},
	}
	simulate.Flags().StringVar(&traffic, "traffic", simulator.DefaultTraffic, "traffic: "+strings.Join(trafficNames(), ", "))
	simulate.Flags().BoolVar(&raw, "json", false, "print the simulation as JSON")
	return simulate
}

func trafficNames() (names []string) {
	for _, t := range simulator.Traffics {
		names = append(names, t.Name)
	}
	return names
}

func trafficHelp() string {
	var b strings.Builder
	for _, t := range simulator.Traffics {
		fmt.Fprintf(&b, "  %-12s %s\n", t.Name, t.About)
	}
	return b.String()
}

// wantsColor reports whether the output is a terminal whose user has not disabled
// colors.
func wantsColor(out any) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(out)
}

func isTerminal(out any) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
