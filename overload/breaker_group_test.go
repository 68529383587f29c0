package overload_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/overload"
)

var errBroken = errors.New("broken")

func breakKey(g *overload.BreakerGroup, key string) {
	for range 9 {
		_ = g.Do(context.Background(), key, func(context.Context) error { return errBroken })
	}
}

func TestBreakerGroupKeysAreIndependent(t *testing.T) {
	g := overload.NewBreakerGroup(nil)
	breakKey(g, "a")
	var open *overload.OpenError
	if _, err := g.Allow("a"); !errors.As(err, &open) || open.Key != "a" {
		t.Errorf("a: got %v, want an OpenError for a", err)
	}
	if err := g.Do(t.Context(), "b", func(context.Context) error { return nil }); err != nil {
		t.Errorf("b: %v", err)
	}
	if keys := g.Open(); !slices.Equal(keys, []string{"a"}) {
		t.Errorf("open: %q, want a", keys)
	}
}

func TestBreakerGroupIsBounded(t *testing.T) {
	g := overload.NewBreakerGroup(&overload.BreakerGroupOptions{MaxKeys: 10})
	for i := range 5 {
		breakKey(g, fmt.Sprint("broken ", i))
	}
	for i := range 1000 { // healthy keys replace each other
		if err := g.Do(t.Context(), fmt.Sprint("healthy ", i), func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(g.Open()); n != 5 {
		t.Fatalf("%d breakers are open, want all five", n)
	}
	for i := range 10 {
		breakKey(g, fmt.Sprint("also broken ", i))
	}
	if n := len(g.Open()); n != 10 {
		t.Errorf("%d breakers are open, want as many as MaxKeys", n)
	}
	call, err := g.Allow("one more")
	if err != nil {
		t.Errorf("a key without a breaker was denied: %v", err)
	}
	call.Done(overload.Failure)
}

func TestBreakerGroupKeepsBreakersWithCallsInFlight(t *testing.T) {
	g := overload.NewBreakerGroup(&overload.BreakerGroupOptions{MaxKeys: 1})
	calls := make([]overload.GroupCall, 9)
	for i := range calls {
		calls[i], _ = g.Allow("a")
	}
	_ = g.Do(t.Context(), "b", func(context.Context) error { return nil })
	for _, c := range calls {
		c.Done(overload.Failure)
	}
	if _, err := g.Allow("a"); !errors.Is(err, overload.ErrOpen) {
		t.Errorf("got %v: the breaker was replaced while its calls were in flight", err)
	}
}
