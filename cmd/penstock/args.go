package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/spelling"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// unknownCommand rejects arguments, which are no names of subcommands.
func unknownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	if near := spelling.Similar(args[0], names); near != "" {
		return fmt.Errorf("unknown command %q: did you mean %s %s?", args[0], c.CommandPath(), near)
	}
	return fmt.Errorf("unknown command %q: %s --help lists all commands", args[0], c.CommandPath())
}

// noArgs rejects arguments.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unexpected argument %q: %s takes none", args[0], c.CommandPath())
}

// wantArgs accepts at least one argument for each of the names, and not more unless the
// last name ends in "...".
func wantArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return fmt.Errorf("missing %s: want %s", names[len(args)], c.UseLine())
		case len(args) > len(names) && !strings.HasSuffix(names[len(names)-1], "..."):
			return fmt.Errorf("unexpected argument %q: want %s", args[len(names)], c.UseLine())
		}
		return nil
	}
}

// oneOfArgs accepts one argument, which must be one of the words.
func oneOfArgs(what string, words ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := wantArgs(what)(c, args); err != nil {
			return err
		}
		if !slices.Contains(words, args[0]) {
			return fmt.Errorf("%s %q: want %s or %s", what, args[0], strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
		}
		return nil
	}
}

// flagError adds the most similar flag to the error about an unknown one, and says what
// kind of value a flag wants.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(c, unknown.GetSpecifiedName())
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		return fmt.Errorf("--%s: %q: want %s", f.Name, invalid.GetValue(), wantedValue(f.Value.Type()))
	}
	return err
}

func wantedValue(kind string) string {
	switch kind {
	case "int", "int64":
		return "a whole number"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration like 500ms or 10s"
	}
	return kind
}

func unknownFlag(c *cobra.Command, name string) error {
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	lists := c.CommandPath()
	if c.Name() == ratelimitName { // its flags are those of serve
		lists = c.Root().Name() + " serve"
	}
	if near := spelling.Similar(name, names); near != "" {
		return fmt.Errorf("unknown flag --%s: did you mean --%s? %s --help lists all flags", name, near, lists)
	}
	return fmt.Errorf("unknown flag --%s: %s --help lists all flags", name, lists)
}
