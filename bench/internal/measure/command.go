package measure

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// A Command is the common command line of the benchmarks, and the errors of their
// cases.
type Command struct {
	Flags         *flag.FlagSet // a benchmark adds its own
	Quick, Strict bool

	stderr  io.Writer
	pattern string
	only    *regexp.Regexp
	failed  []error
}

// NewCommand returns the command of a benchmark that has the given cases.
func NewCommand(name string, stderr io.Writer, cases []string) *Command {
	c := &Command{Flags: flag.NewFlagSet(name, flag.ContinueOnError), stderr: stderr}
	c.Flags.SetOutput(stderr)
	c.Flags.BoolVar(&c.Quick, "quick", false, "small and short, to see that everything runs; targets are not checked")
	c.Flags.BoolVar(&c.Strict, "strict", false, "exit with a non-zero status if a target is missed")
	c.Flags.StringVar(&c.pattern, "run", "", "run only the cases that match this regular expression: "+strings.Join(cases, ", "))
	return c
}

// Parse reads the command line, and prints what is wrong with it. The function rest
// checks the benchmark's own flags.
func (c *Command) Parse(args []string, rest func() error) bool {
	err := c.Flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return false
	}
	if err == nil {
		err = rest()
	}
	if err == nil {
		c.only, err = regexp.Compile(c.pattern)
	}
	if err != nil {
		c.PrintError(err)
	}
	return err == nil
}

// PrintError prints an error.
func (c *Command) PrintError(err error) { fmt.Fprintf(c.stderr, "%s: %v\n", c.Flags.Name(), err) }

// Wants reports whether a case is to be run.
func (c *Command) Wants(name string) bool { return c.only.MatchString(name) }

// Record records the error of a case, if its workload was wrong. The results of the
// other cases are still valid.
func (c *Command) Record(name string, err error) {
	if err != nil {
		c.failed = append(c.failed, fmt.Errorf("%s: %w", name, err))
	}
}

// Status prints which cases failed and, with -strict, how many targets were missed, and
// returns the exit status.
func (c *Command) Status(fs Findings) int {
	for _, err := range c.failed {
		c.PrintError(fmt.Errorf("wrong workload: %w", err))
	}
	missed := 0
	if c.Strict && !c.Quick {
		missed = fs.Missed()
		fmt.Fprintf(c.stderr, "%s: %d targets missed\n", c.Flags.Name(), missed)
	}
	if len(c.failed) > 0 || missed > 0 {
		return 1
	}
	return 0
}
