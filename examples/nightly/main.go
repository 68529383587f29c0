// Nightly is a batch job that may make so many calls in each window. When it got
// the last one it does not try the next, only to be refused: it sleeps until the
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

// run makes so many calls under a limit that is counted in windows of the clock.
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
			return fmt.Errorf("call %d was refused: %v", i, d)
		}
		fmt.Fprintln(w, "call", i)
		if d.Remaining == 0 && i < calls {
			fmt.Fprintln(w, "that was the last of this window; the next begins in", d.ResetAfter.Round(time.Millisecond))
			if err := sleep(ctx, d.ResetAfter); err != nil {
				return err
			}
		}
	}
	return nil
}

// sleep returns after d, or with the error of ctx when that ends before.
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
