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
	examples := false
	serve := settingsCommand(loadServe, &examples, &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Serve runs the server until SIGTERM or SIGINT. Then /readyz reports that it is
shutting down, requests in flight are completed, and the process exits. A second
signal kills it. SIGHUP reloads rules and certificates, which are also reloaded when
their files change, and reopens the audit log.

Every flag can also be set by an environment variable, as in
PENSTOCK_LOG_LEVEL=debug, or in the file that --config names, as in
"log-level: debug". Flags override variables, and variables override the file.`,
		Example: `  penstock serve
  penstock serve --rules rules/ --store redis://localhost:6379
  penstock serve --grpc "" --resp "" --http 127.0.0.1:8080
  penstock serve --http-tls-cert tls.crt --http-tls-key tls.key`,
	})
	serve.Flags().BoolVar(&examples, "print-examples", false, "print an example command for each listener")
	serve.SetUsageFunc(printServeUsage)
	return serve
}

// printServeUsage lists the flags grouped as in [server.Settings].
func printServeUsage(c *cobra.Command) error {
	w := c.OutOrStderr()
	fmt.Fprintf(w, "Usage:\n  %s\n\nExamples:\n%s\n", c.UseLine(), c.Example)
	var heading string
	group := pflag.NewFlagSet("", pflag.ContinueOnError)
	flush := func(next string) {
		if group.HasFlags() {
			fmt.Fprintf(w, "\n%s:\n%s", heading, group.FlagUsagesWrapped(usageWidth))
		}
		heading, group = next, pflag.NewFlagSet("", pflag.ContinueOnError)
		group.SortFlags = false
	}
	for _, s := range server.Settings {
		if s.Group != heading {
			flush(s.Group)
		}
		group.AddFlag(c.Flags().Lookup(s.Name))
	}
	flush("Help")
	group.AddFlag(c.Flags().Lookup("print-examples"))
	group.AddFlag(c.Flags().Lookup("help"))
	flush("")
	return nil
}

// usageWidth is a width in columns that most terminals have.
const usageWidth = 100

// settingsCommand makes a command run the server. It has a flag for each setting, whose values
// are collected in a map, for [server.LoadConfig] or a function like it.
func settingsCommand(load func(flags map[string]string, environ []string) (*server.Config, error), examples *bool, c *cobra.Command) *cobra.Command {
	values := map[string]string{}
	c.Args = noArgs
	c.RunE = func(c *cobra.Command, _ []string) error {
		config, err := load(values, os.Environ())
		if err != nil {
			return err
		}
		return serve(c.Context(), config, c.OutOrStdout(), c.ErrOrStderr(), *examples)
	}
	c.Flags().SortFlags = false
	for _, s := range server.Settings {
		f := c.Flags().VarPF(flagValue{s, values}, s.Name, "", s.Help)
		if s.Kind == "" {
			f.NoOptDefVal = "true"
		}
		completeFlag(c, s.Name, s.Kind, s.Values)
	}
	return c
}

// A flagValue is a [pflag.Value] that stores the flag's text in a map.
type flagValue struct {
	setting server.Setting
	values  map[string]string
}

func (v flagValue) String() string { return v.setting.Default }

func (v flagValue) Type() string {
	if v.setting.Kind == "" {
		return "bool" // pflag prints no placeholder for the value of a bool
	}
	return v.setting.Kind
}

func (v flagValue) Set(text string) error {
	v.values[v.setting.Name] = text
	return nil
}

func serve(ctx context.Context, c *server.Config, stdout, stderr io.Writer, examples bool) error {
	tuneGC()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // before New, so that an early SIGHUP does not end the process
	log, lines := newLog(c, stderr)
	defer lines.close()
	useForPackages(log)
	if warning := warnOfRatelimit(os.Environ()); warning != "" && c.Ratelimit == nil {
		log.Warn(warning)
	}
	s, err := server.New(ctx, c, log)
	if err != nil {
		return err
	}
	go func() {
		for range hangups { // until the process ends
			s.Reload()
		}
	}()
	if examples {
		lines.flush() // so that no log line comes between the examples
		printExamples(stdout, s, c)
	}
	return s.Run(ctx)
}
