package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/penstock-io/penstock/internal/spelling"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	exitOK       = 0
	exitNegative = 1 // the result is negative: denied, invalid or not ready
	exitError    = 2 // there is no result
)

// errNegative is returned for a negative result, which has been printed.
var errNegative = errors.New("negative result")

// run runs the command and returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// After the first signal, restore the default: a second one ends the process.
	context.AfterFunc(ctx, stop)

	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errNegative):
		return exitNegative
	}
	fmt.Fprintf(stderr, "penstock: %s\n", oneLine(err))
	return exitError
}

// oneLine returns an error's text without line breaks, and without the prefix
// "penstock: ", which run adds.
func oneLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "penstock: ")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Rate limiting for every language",
		Long: `Penstock is a rate limiter. It serves Envoy over gRPC, proxies and programs over
HTTP, and Redis clients by CL.THROTTLE, all from the same counters.

Exit codes: 0 success or allowed; 1 a negative result: denied, invalid or not
ready; 2 an error without a result.`,
		Example: `  penstock serve
  penstock take user:42 --limit "10/1m"
  penstock rules check rules.yaml`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(serveCommand(), takeCommand(), benchCommand(), rulesCommand(), healthCommand(), versionCommand())
	return root
}

// flagError adds the most similar flag to the error about an unknown one.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if near := nearestFlag(c, name); near != "" {
		return fmt.Errorf("unknown flag --%s: did you mean --%s? %s --help lists all flags", name, near, c.CommandPath())
	}
	return fmt.Errorf("unknown flag --%s: %s --help lists all flags", name, c.CommandPath())
}

func nearestFlag(c *cobra.Command, name string) string {
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return spelling.Nearest(name, names)
}
