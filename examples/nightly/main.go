// Nightly is a batch job with a limited number of calls per window. After the last call
// of a window it does not try another one, which would be denied: it sleeps until the
// next window begins.
//
//	go run ./examples/nightly
//	go run ./examples/nightly 10/1s
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

func main() {
	text := strings.Join(os.Args[1:], " ")
	if text == "" {
		text = "4/3s"
	}
	if err := run(context.Background(), os.Stdout, text, 10); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run makes calls under a limit. It uses fixed windows aligned to the clock, because only
// these give all units back at one known moment, ResetAfter.
func run(ctx context.Context, w io.Writer, text string, calls int) error {
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		return err
	}
	limit.Algorithm, limit.Align = penstock.FixedWindow, penstock.AlignClock
	lim, err := penstock.New(penstock.NewMemory(nil), limit)
	if err != nil {
		return err
	}
	for i := 1; i <= calls; i++ {
		d, err := lim.Allow(ctx, "nightly")
		if err != nil {
			return err
		}
		if !d.Allowed {
			return fmt.Errorf("call %d was denied: %v", i, d)
		}
		fmt.Fprintln(w, "call", i)
		if d.Remaining == 0 && i < calls {
			fmt.Fprintln(w, "the window is used up; the next begins in", d.ResetAfter.Round(time.Millisecond))
			if err := sleep(ctx, d.ResetAfter); err != nil {
				return err
			}
		}
	}
	return nil
}

// sleep waits for d, or returns the error of ctx if it ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
