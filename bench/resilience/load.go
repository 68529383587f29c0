package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// callers is how many ask at once.
const callers = 64

// An asker makes one request, of a caller's choice.
type asker func(rng *rand.Rand) (penstock.Decision, error)

func allow(lim *penstock.Limiter, key string) asker {
	return func(*rand.Rand) (penstock.Decision, error) { return lim.Allow(context.Background(), key) }
}

// A tally is what came of a load.
type tally struct {
	decisions, admitted, errors atomic.Int64
	first                       atomic.Pointer[error]
	took                        time.Duration
}

func (t *tally) note(d penstock.Decision, err error) {
	t.decisions.Add(1)
	switch {
	case err != nil:
		t.errors.Add(1)
		t.first.CompareAndSwap(nil, &err)
	case d.Allowed:
		t.admitted.Add(d.Granted)
	}
}

// failed returns the first error that a caller saw.
func (t *tally) failed() error {
	if err := t.first.Load(); err != nil {
		return *err
	}
	return nil
}

func (t *tally) rate() float64 { return float64(t.decisions.Load()) / t.took.Seconds() }

// press lets all callers ask as fast as they can.
func press(length time.Duration, ask asker) *tally {
	t := &tally{}
	t.run(callers, func(caller int, begin time.Time) {
		rng := rand.New(rand.NewPCG(uint64(caller), 1))
		for time.Since(begin) < length {
			t.note(ask(rng))
		}
	})
	return t
}

// pace lets a few callers ask so many times a second, all together. Who falls behind
// catches up.
func pace(length time.Duration, perSecond float64, among int, ask asker) *tally {
	t := &tally{}
	t.run(among, func(caller int, begin time.Time) {
		rng := rand.New(rand.NewPCG(uint64(caller), 2))
		asked := 0
		for at := time.Duration(0); at < length; at = time.Since(begin) {
			due := int(at.Seconds() * perSecond / float64(among))
			for ; asked < due; asked++ {
				t.note(ask(rng))
			}
			<-time.After(time.Millisecond)
		}
	})
	return t
}

func (t *tally) run(among int, call func(caller int, begin time.Time)) {
	begin := time.Now()
	var running sync.WaitGroup
	for i := range among {
		running.Go(func() { call(i, begin) })
	}
	running.Wait()
	t.took = time.Since(begin)
}
