package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/redisstore"
)

// mixedTraffic takes nine times in ten from a few spent keys, and otherwise from one of
// many that are not.
func mixedTraffic(store penstock.Store) (takeFunc, error) {
	good, err := limiter(store, "1000/1s name=good")
	if err != nil {
		return nil, err
	}
	spent, err := limiter(store, "1/10s name=spent")
	return func(rng *rand.Rand) (penstock.Decision, error) {
		if rng.IntN(10) == 0 {
			return good.Allow(context.Background(), "good"+strconv.Itoa(rng.IntN(10_000)))
		}
		return spent.Allow(context.Background(), "bad"+strconv.Itoa(rng.IntN(100)))
	}, err
}

// denyAbusers compares a store with and without a deny cache, in turns.
func (b *bench) denyAbusers() error {
	s, store, err := openRedis(patient)
	if err != nil {
		return err
	}
	defer s.stop()
	bare, err := mixedTraffic(store)
	if err != nil {
		return err
	}
	cached, err := mixedTraffic(penstock.WithDenyCache(store, nil))
	if err != nil {
		return err
	}
	var with, without []float64
	var decisions, calls int64
	for range b.rounds {
		t := callFreely(b.turn, bare)
		without = append(without, t.rate())
		before, err := s.calls()
		if err != nil || t.failed() != nil {
			return errors.Join(err, t.failed())
		}
		t = callFreely(b.turn, cached)
		with = append(with, t.rate())
		after, err := s.calls()
		if err != nil || t.failed() != nil {
			return errors.Join(err, t.failed())
		}
		decisions, calls = decisions+t.decisions.Load(), calls+after-before
	}
	times := measure.SpreadOf(measure.Ratios(with, without))
	part := float64(calls) / float64(decisions)
	b.findings.Add("deny cache, 90 % spent keys, 64 callers",
		"≥ 5× without, calls ≤ 15 % of decisions", times.Median >= 5 && part <= 0.15,
		"%s, %.1f %%", measure.TimesWithSpread(times), 100*part)
	return nil
}

// openRedis starts a server and opens a store on it, with a timeout.
func openRedis(timeout time.Duration) (*servers, *redisstore.Store, error) {
	s, err := startRedis()
	if err != nil {
		return nil, nil, err
	}
	store, err := s.open(timeout)
	if err != nil {
		s.stop()
	}
	return s, store, err
}

// denySaturated takes ten times the limit of a few keys, at a steady pace, with a deny
// cache and without.
func (b *bench) denySaturated() error {
	s, store, err := openRedis(patient)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, keys := range []int{1, 10, 100} {
		if err := b.denySaturatedKeys(s, store, keys); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) denySaturatedKeys(s *servers, store penstock.Store, keys int) error {
	const perSecond = 10_000
	each := perSecond / 10 / keys
	burst := max(each/4, 5)
	limit := fmt.Sprintf("%d/1s burst=%d", each, burst)
	run := func(store penstock.Store, name string) (t *counts, calls int64, err error) {
		lim, err := limiter(store, limit+" name="+name)
		if err != nil {
			return nil, 0, err
		}
		before, err := s.calls()
		if err != nil {
			return nil, 0, err
		}
		t = callPaced(b.span, perSecond, 32, func(rng *rand.Rand) (penstock.Decision, error) {
			return lim.Allow(context.Background(), strconv.Itoa(rng.IntN(keys)))
		})
		after, err := s.calls()
		if err == nil {
			err = t.failed()
		}
		return t, after - before, err
	}
	bare, _, err := run(store, "bare")
	if err != nil {
		return err
	}
	cached, calls, err := run(penstock.WithDenyCache(store, nil), "cached")
	if err != nil {
		return err
	}
	part := float64(calls) / float64(cached.decisions.Load())
	// The runs differ slightly in length.
	share := func(t *counts) float64 {
		return float64(t.admitted.Load()) / (float64(keys) * (float64(burst) + float64(each)*t.took.Seconds()))
	}
	ratio := share(cached) / share(bare)
	kept := min(bare.rate(), cached.rate()) >= 0.9*perSecond
	if !kept {
		b.logf("%d keys: the machine is too busy for %d decisions a second", keys, perSecond)
	}
	b.findings.Add(fmt.Sprintf("deny cache, %d saturated keys, 90 %% denied, 10,000 decisions a second", keys),
		"calls ≤ 15 % of decisions, admitted within 1 % of without", kept && part <= 0.15 && ratio >= 0.99 && ratio <= 1.01,
		"%.1f %%, admitted %.2f %% of without, which was %.1f %% of what the limit allows", 100*part, 100*ratio, 100*share(bare))
	return nil
}
