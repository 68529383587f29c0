// Quickstart shows the decisions of a limit: it takes one unit after the other until one
// is denied, and then waits for the next.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart "5/2s sliding-log"
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

func main() {
	if err := run(context.Background(), os.Stdout, strings.Join(os.Args[1:], " ")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run takes units until one is denied, at most twenty, and waits for the next.
func run(ctx context.Context, w io.Writer, text string) error {
	if text == "" {
		text = "3/1s"
	}
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		return err
	}
	lim, err := penstock.New(penstock.NewMemory(nil), limit)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "limit", limit)
	var next time.Duration
	for range 20 {
		d, err := lim.Allow(ctx, "user:42")
		if err != nil {
			return err
		}
		fmt.Fprintln(w, d)
		next = d.RetryAfter
		if !d.Allowed {
			break
		}
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = lim.Wait(ctx, "user:42")
	switch {
	case errors.Is(err, penstock.ErrDeadline):
		fmt.Fprintf(w, "the next is in %v; not waiting for it\n", next.Round(time.Second))
		return nil
	case err != nil:
		return err
	}
	fmt.Fprintln(w, "waited", time.Since(start).Round(time.Millisecond), "for the next")
	return nil
}
