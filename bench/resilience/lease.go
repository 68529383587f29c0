package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
)

// leaseHotKey takes one key below its rate, with a lease and without, in turns.
func (b *bench) leaseHotKey() error {
	s, err := startRedis()
	if err != nil {
		return err
	}
	defer s.stop()
	store, err := s.open(patient)
	if err != nil {
		return err
	}
	lease := penstock.WithLease(store, nil)
	defer func() { _ = lease.Close(context.Background()) }()
	const limit = "20000000/1s burst=15000"
	bare, err := limiter(store, limit+" name=bare")
	if err != nil {
		return err
	}
	leased, err := limiter(lease, limit+" name=leased")
	if err != nil {
		return err
	}
	var with, without []float64
	var decisions, denied, calls int64
	for range b.rounds {
		t := callFreely(b.turn, allow(bare, "hot"))
		if err := t.failed(); err != nil {
			return err
		}
		without = append(without, t.rate())
		before, err := s.calls()
		if err != nil {
			return err
		}
		t = callFreely(b.turn, allow(leased, "hot"))
		after, err := s.calls()
		if err != nil || t.failed() != nil {
			return errors.Join(err, t.failed())
		}
		with = append(with, t.rate())
		decisions, calls = decisions+t.decisions.Load(), calls+after-before
		denied += t.decisions.Load() - t.admitted.Load()
	}
	if denied*100 > decisions {
		return fmt.Errorf("%d of %d were denied: the load was not below the rate of the key", denied, decisions)
	}
	times := measure.SpreadOf(measure.Ratios(with, without))
	trips := 100 * float64(calls) / float64(decisions)
	b.findings.Add("hot key with a lease, 64 callers, B = 15,000, load below its rate",
		"≥ 20× without, ≤ 1.5 calls per 100 decisions", times.Median >= 20 && trips <= 1.5,
		"%s, %.2f calls per 100; %.0f and %.0f thousand a second", measure.TimesWithSpread(times), trips,
		measure.SpreadOf(with).Median/1000, measure.SpreadOf(without).Median/1000)
	return nil
}

// leaseAboveRate runs eight nodes, each with its own client, with far more load than the
// limit.
func (b *bench) leaseAboveRate() error {
	s, err := startRedis()
	if err != nil {
		return err
	}
	defer s.stop()
	const nodes, burst, perSecond = 8, 6000, 6000
	var lims []*penstock.Limiter
	for range nodes {
		store, err := s.open(patient)
		if err != nil {
			return err
		}
		lease := penstock.WithLease(store, &penstock.LeaseOptions{Nodes: nodes})
		defer func() { _ = lease.Close(context.Background()) }()
		lim, err := limiter(lease, fmt.Sprintf("%d/1s burst=%d", perSecond, burst))
		if err != nil {
			return err
		}
		lims = append(lims, lim)
	}
	before, err := s.calls()
	if err != nil {
		return err
	}
	var next atomic.Int64
	t := callPaced(2*b.span, 5*perSecond, 2*nodes, func(*rand.Rand) (penstock.Decision, error) {
		return lims[next.Add(1)%nodes].Allow(context.Background(), "hot")
	})
	after, err := s.calls()
	if err != nil || t.failed() != nil {
		return errors.Join(err, t.failed())
	}
	ideal := burst + perSecond*t.took.Seconds()
	trips := 100 * float64(after-before) / float64(t.decisions.Load())
	admitted := float64(t.admitted.Load()) / ideal
	b.findings.Add("hot key with a lease, eight nodes, B = 6,000, load five times its rate",
		"≤ 1.5 calls per 100 decisions, ≥ 97 % of what the limit allows", trips <= 1.5 && admitted >= 0.97 && admitted <= 1.1,
		"%.2f calls per 100, %.1f %%", trips, 100*admitted)
	return nil
}
