package main

import (
	"path/filepath"
	"strings"

	"github.com/penstock-io/penstock/server"
	"github.com/spf13/cobra"
)

// ratelimitName is the name of the command, and that of the program in the image of
// envoyproxy/ratelimit.
const ratelimitName = "ratelimit"

// withCommand adds the command to the arguments of a program that is called ratelimit.
func withCommand(program string, args []string) []string {
	if filepath.Base(program) != ratelimitName || len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return args
	}
	return append([]string{ratelimitName}, args...)
}

func ratelimitCommand() *cobra.Command {
	c := settingsCommand(server.LoadRatelimitConfig, new(bool), &cobra.Command{
		Use:   ratelimitName,
		Short: "Run the server in place of envoyproxy/ratelimit",
		Long: `Ratelimit runs the server as serve does, configured by the environment variables of
envoyproxy/ratelimit: REDIS_SOCKET_TYPE, REDIS_URL, RUNTIME_ROOT and all others. It has that service's
ports, pages, statistics and answers (--compat envoy). A program of this name, as in
/bin/ratelimit of the image, needs no arguments.

Flags, PENSTOCK_ variables and the config file override the variables; penstock serve
--help lists them. Variables that have no effect are logged, with the reason. Counters
begin anew.`,
	})
	for _, s := range server.Settings {
		_ = c.Flags().MarkHidden(s.Name) // penstock serve --help lists them
	}
	return c
}

// warnOfRatelimit returns what to tell an operator who set variables of envoyproxy/ratelimit, but
// started serve, which does not read them; "" if there are none.
func warnOfRatelimit(environ []string) string {
	names := server.IsRatelimitEnvironment(environ)
	if len(names) == 0 {
		return ""
	}
	return "variables of envoyproxy/ratelimit have no effect: " + strings.Join(names, ", ") + "; penstock ratelimit reads them"
}
