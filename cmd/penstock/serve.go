package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/penstock-io/penstock/server"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func serveCommand() *cobra.Command {
	flags := map[string]string{}
	try := false
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Serve runs the server until it gets SIGTERM or SIGINT; then it tells load
balancers, finishes what is under way and ends. A second signal ends it at once.
SIGHUP reads the rules and certificates again; they are also read when they change.

Every flag can also be set by a variable, as in PENSTOCK_LOG_LEVEL=debug, or in
the file that --config names, as in "log-level: debug". A flag wins over a
variable, and a variable over the file.`,
		Example: `  penstock serve
  penstock serve --rules rules/ --store redis://localhost:6379
  penstock serve --grpc "" --resp "" --http 127.0.0.1:8080
  penstock serve --http-tls-cert tls.crt --http-tls-key tls.key`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := server.LoadConfig(flags, os.Environ())
			if err != nil {
				return err
			}
			return serve(c.Context(), config, c.OutOrStdout(), c.ErrOrStderr(), try)
		},
	}
	addSettings(serve.Flags(), flags)
	serve.Flags().BoolVar(&try, "try", false, "print a line to try for each door")
	serve.SetUsageFunc(printServeUsage)
	return serve
}

// printServeUsage lists the flags under the headings of the settings.
func printServeUsage(c *cobra.Command) error {
	w := c.OutOrStderr()
	fmt.Fprintf(w, "Usage:\n  %s\n\nExamples:\n%s\n", c.UseLine(), c.Example)
	var heading string
	under := pflag.NewFlagSet("", pflag.ContinueOnError)
	flush := func(next string) {
		if under.HasFlags() {
			fmt.Fprintf(w, "\n%s:\n%s", heading, under.FlagUsagesWrapped(usageWidth))
		}
		heading, under = next, pflag.NewFlagSet("", pflag.ContinueOnError)
		under.SortFlags = false
	}
	for _, s := range server.Settings {
		if s.Group != heading {
			flush(s.Group)
		}
		under.AddFlag(c.Flags().Lookup(s.Name))
	}
	flush("For people")
	under.AddFlag(c.Flags().Lookup("try"))
	under.AddFlag(c.Flags().Lookup("help"))
	flush("")
	return nil
}

// usageWidth is how wide most terminals are at least.
const usageWidth = 100

// addSettings gives the flags a place to be collected in.
func addSettings(set *pflag.FlagSet, values map[string]string) {
	set.SortFlags = false
	for _, s := range server.Settings {
		f := set.VarPF(flagValue{s, values}, s.Name, "", s.Help)
		if s.Kind == "" {
			f.NoOptDefVal = "true"
		}
	}
}

// A flagValue collects what a flag is set to.
type flagValue struct {
	setting server.Setting
	values  map[string]string
}

func (v flagValue) String() string { return v.setting.Default }

func (v flagValue) Type() string {
	if v.setting.Kind == "" {
		return "bool" // which pflag knows to need no word for its value
	}
	return v.setting.Kind
}

func (v flagValue) Set(text string) error {
	v.values[v.setting.Name] = text
	return nil
}

func serve(ctx context.Context, c *server.Config, stdout, stderr io.Writer, try bool) error {
	giveRoom()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // from now on it does not end the process
	log, lines := newLog(c, stderr)
	defer lines.end()
	s, err := server.New(ctx, c, log)
	if err != nil {
		return err
	}
	defer reloadOn(hangups, s)()
	if try {
		lines.flush() // so that none of them comes between those to try
		printTries(stdout, s, c)
	}
	return s.Run(ctx)
}

// reloadOn reads rules and certificates again at every signal, until it is stopped.
func reloadOn(hangups chan os.Signal, s *server.Server) (stop func()) {
	go func() {
		for range hangups {
			s.Reload()
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
	}
}
