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

	"github.com/spf13/cobra"
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
	ctx, stop := untilSignal()
	defer stop()

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

// untilSignal returns a context that ends at the first signal to end. By then the default is
// restored: a second signal, which may follow whatever reports the first, ends the process.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stop = func() {
		signal.Stop(signals)
		cancel()
	}
	go func() {
		select {
		case <-signals:
			stop()
		case <-ctx.Done():
		}
	}()
	return ctx, stop
}

// oneLine returns an error's text without line breaks or what a terminal could act on, and without the
// prefix "penstock: ", which run adds.
func oneLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "penstock: ")
	return printable(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Rate limiting for every language",
		Long: `Penstock is a rate limiter. It serves Envoy over gRPC, proxies and programs over
HTTP, and Redis clients by PENSTOCK.TAKE and CL.THROTTLE, all on one store.

Exit codes: 0 success or allowed; 1 a negative result: denied, invalid or not
ready; 2 an error without a result.`,
		Example: `  penstock serve
  penstock take user:42 --limit "10/1m"
  penstock rules check rules.yaml`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
		Args:          unknownCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(serveCommand(), ratelimitCommand(), takeCommand(), settleCommand(), peekCommand(), refundCommand(), resetCommand(), overrideCommand(), rulesCommand(), topCommandOf(), simulateCommand(), replayCommand(), healthCommand(), doctorCommand(), benchCommand(), completionCommand(), versionCommand())
	return root
}
