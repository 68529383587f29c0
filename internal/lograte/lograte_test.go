package lograte_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/lograte"
)

func TestSamplerCountsWhatItSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lograte.PerSecond()
		for _, want := range []struct {
			skipped int64
			ok      bool
		}{{0, true}, {0, false}, {0, false}} {
			if skipped, ok := s.Allow(); skipped != want.skipped || ok != want.ok {
				t.Errorf("got %d, %v, want %+v", skipped, ok, want)
			}
		}
		time.Sleep(time.Second)
		if skipped, ok := s.Allow(); skipped != 2 || !ok {
			t.Errorf("a second later: got %d, %v, want 2 and true", skipped, ok)
		}
	})
}

func TestNewSamplerRejectsInvalidLimit(t *testing.T) {
	if _, err := lograte.NewSampler(penstock.Limit{Count: 1}); err == nil {
		t.Error("a limit without a period: want an error")
	}
}

func TestSamplerAllocatesNothing(t *testing.T) {
	s := lograte.PerSecond()
	if n := testing.AllocsPerRun(100, func() { s.Allow() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
