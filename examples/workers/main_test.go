package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestNoCallIsDenied(t *testing.T) {
	var out strings.Builder
	start := time.Now()
	if err := run(t.Context(), &out, "100/1s", "100/1s burst=1", 30); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "30 calls, 0 denied, in ") {
		t.Errorf("printed %q", &out)
	}
	if got := time.Since(start); got < 290*time.Millisecond {
		t.Errorf("30 calls at 100 a second took %v", got)
	}
}

func TestRunErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	if err := run(ctx, &out, "5/1s", "5/1s", 10); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := run(t.Context(), &out, "5/1s", "5/x", 10); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("got %v", err)
	}
}
