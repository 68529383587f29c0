package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/penstock-io/penstock/server"
	"github.com/spf13/cobra"
)

// ratelimitName is the name of the command, and that of the program in the image of
// envoyproxy/ratelimit.
const ratelimitName = "ratelimit"

// withCommand adds the command to the arguments of a program that is called ratelimit, and replaces the
// path of such a program as the first argument: manifests that name it as the arguments, and not as the
// program, leave the image's own program in front.
func withCommand(program string, args []string) []string {
	isCommand := len(args) > 0 && !strings.HasPrefix(args[0], "-")
	switch {
	case isCommand && filepath.Base(args[0]) == ratelimitName:
		return append([]string{ratelimitName}, args[1:]...)
	case isCommand || filepath.Base(program) != ratelimitName:
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
begin anew. Serve does the same if it finds REDIS_SOCKET_TYPE, CONFIG_TYPE=GRPC_XDS_SOTW,
RUNTIME_ROOT or another variable that only that service has, and no rules or store of
its own.`,
	})
	for _, s := range server.Settings {
		_ = c.Flags().MarkHidden(s.Name) // penstock serve --help lists them
	}
	return c
}

// loadServe is [server.LoadConfig], and in the environment of envoyproxy/ratelimit
// [server.LoadRatelimitConfig]: whoever only changes the image of its manifest starts serve, which
// would limit nothing without its variables. A server with rules or a store of its own has a manifest
// of its own.
func loadServe(flags map[string]string, environ []string) (*server.Config, error) {
	c, err := server.MergeSettings(flags, environ)
	names, isMeant := server.RatelimitVariables(environ)
	if _, hasStore := flags["store"]; err != nil || !isMeant || hasStore || c.HasOwnSource() {
		return server.LoadConfig(flags, environ)
	}
	if c, err = server.LoadRatelimitConfig(flags, environ); err != nil {
		return nil, fmt.Errorf("in place of envoyproxy/ratelimit, because its variables are set: %w", err)
	}
	c.Ratelimit.Notes = append(c.Ratelimit.Notes, "serving in place of envoyproxy/ratelimit, as penstock ratelimit does, because of its variables: "+
		strings.Join(names, ", ")+"; with --rules or --store they have no effect")
	return c, nil
}

// warnOfRatelimit returns what to tell an operator who set variables of envoyproxy/ratelimit, but
// started serve, which does not read them; "" if there are none.
func warnOfRatelimit(environ []string) string {
	names, _ := server.RatelimitVariables(environ)
	if len(names) == 0 {
		return ""
	}
	return "variables of envoyproxy/ratelimit have no effect: " + strings.Join(names, ", ") + "; penstock ratelimit reads them"
}
