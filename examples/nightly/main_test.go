package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

func TestJobSleepsUntilNextWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(1200 * time.Millisecond)
		var out strings.Builder
		start := time.Now()
		if err := run(t.Context(), &out, "4/3s", 9); err != nil {
			t.Fatal(err)
		}
		want := `call 1
call 2
call 3
call 4
the window is used up; the next begins in 1.8s
call 5
call 6
call 7
call 8
the window is used up; the next begins in 3s
call 9
`
		if out.String() != want || time.Since(start) != 4800*time.Millisecond {
			t.Errorf("in %v, got\n%swant\n%s", time.Since(start), &out, want)
		}
	})
}

func TestJobErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := run(ctx, &out, "4/1h", 9); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := run(ctx, &out, "4 an hour", 9); !errors.Is(err, penstock.ErrBadLimit) {
			t.Errorf("got %v", err)
		}
		if err := run(ctx, &out, "0/1h", 9); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("got %v", err)
		}
	})
}
