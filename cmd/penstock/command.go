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

// What the process tells the shell.
const (
	exitDone  = 0
	exitNo    = 1 // the answer is no: denied, or not valid
	exitError = 2 // there is no answer
)

// errNo is the answer no, which has been printed.
var errNo = errors.New("no")

// run runs the command and returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Whoever asks a second time does not want to wait.
	context.AfterFunc(ctx, stop)

	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errNo):
		return exitNo
	}
	fmt.Fprintf(stderr, "penstock: %s\n", oneLine(err))
	return exitError
}

// oneLine returns an error's text without line breaks, and without the library's name,
// which is that of the command, too.
func oneLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "penstock: ")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Rate limiting for every language",
		Long: `Penstock decides who may go on and who has to wait: for Envoy over gRPC, for
proxies and programs over HTTP, and for Redis clients by CL.THROTTLE, all of
them against the same counters.

Exit codes: 0 done, or allowed; 1 the answer is no: denied, or not valid;
2 an error, and no answer.`,
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

// flagError names the flag that a misspelt one was most likely meant to be.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if near := nearestFlag(c, name); near != "" {
		return fmt.Errorf("no flag --%s; the nearest is --%s, and %s --help lists all", name, near, c.CommandPath())
	}
	return fmt.Errorf("no flag --%s; %s --help lists all", name, c.CommandPath())
}

func nearestFlag(c *cobra.Command, name string) string {
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return spelling.Nearest(name, names)
}
