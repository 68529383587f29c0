package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock-io/penstock"
)

func TestQuickstart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		if err := run(context.Background(), &out, ""); err != nil {
			t.Fatal(err)
		}
		want := `limit 3/1s
allowed granted=1 remaining=2/3 reset=333.333334ms
allowed granted=1 remaining=1/3 reset=666.666668ms
allowed granted=1 remaining=0/3 reset=1.000000002s
denied remaining=0/3 retry=333.333334ms reset=1.000000002s
waited 333ms for the next
`
		if out.String() != want {
			t.Errorf("got\n%swant\n%s", &out, want)
		}
	})
}

func TestQuickstartDoesNotWaitLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		if err := run(context.Background(), &out, "1/4h"); err != nil || !strings.HasSuffix(out.String(), "the next is in 4h0m0s; not waiting for it\n") {
			t.Errorf("got %v\n%s", err, &out)
		}
	})
}

func TestQuickstartErrors(t *testing.T) {
	for text, want := range map[string]error{"5/2x": penstock.ErrBadLimit, "0/1s": penstock.ErrNever} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			if err := run(context.Background(), &out, text); !errors.Is(err, want) {
				t.Errorf("%q: %v, want %v", text, err, want)
			}
		})
	}
}
