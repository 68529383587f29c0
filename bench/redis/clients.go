package main

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// clients races the limiters through their client libraries, with penstock and
// what it is measured by as neighbours.
func (b *bench) clients() error {
	if err := b.empty(); err != nil {
		return err
	}
	field := append([]contestant{ours, trivial, redisRate}, ourWindows...)
	field = append(append(field, floors[:2]...), rivals[1:]...)
	entrants, err := b.field(field)
	defer closeAll(entrants)
	if err != nil {
		return err
	}
	b.say("clients: %d rounds of %s for each of %d limiters", b.rounds, b.length, len(entrants))
	if err := race(b.server, b.rounds, b.length, entrants); err != nil {
		return err
	}
	if err := b.proveAfter(entrants); err != nil {
		return err
	}
	b.report.addClients(entrants, b.sizes.counted)
	b.findClients(entrants[0], entrants[1], entrants[2])
	return nil
}

// field enters everybody, after proving that each is a limiter.
func (b *bench) field(contestants []contestant) (entrants []*entrant, err error) {
	keys := keyNames("user:key", b.sizes.many)
	for _, c := range contestants {
		if err := b.proveLimits(c); err != nil {
			return entrants, err
		}
		e, err := b.enter(c, keys)
		if err != nil {
			return entrants, err
		}
		entrants = append(entrants, e)
	}
	return entrants, nil
}

func closeAll(entrants []*entrant) {
	for _, e := range entrants {
		e.limiter.close()
	}
}

// keyNames returns keys of 20 bytes that begin with eight of their own.
func keyNames(begin string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%012d", begin, i)
	}
	return keys
}

// isFloor reports whether it never denies, being no limiter.
func (c contestant) isFloor() bool {
	for _, f := range floors {
		if f.name == c.name {
			return true
		}
	}
	return false
}

// proveLimits returns an error unless a limit of one unit admits one, on each of
// some keys. Of three calls one more may pass, because go-zero's slowest limit
// gives a unit back every second.
func (b *bench) proveLimits(c contestant) error {
	if c.isFloor() {
		return nil
	}
	l, err := c.open(b.server.Addr, once)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	defer l.close()
	for _, key := range keyNames("user:one", 10) {
		granted := 0
		for range 3 {
			ok, err := l.take(context.Background(), key)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if ok {
				granted++
			}
		}
		if granted < 1 || granted > 2 {
			return fmt.Errorf("%s: %d of 3 calls on key %s granted, want 1", c.name, granted, key)
		}
	}
	return nil
}

// proveAfter returns an error unless everybody was granted everything, and no
// key has lost its expiry but those that never had one.
func (b *bench) proveAfter(entrants []*entrant) error {
	lasting := 0
	for _, e := range entrants {
		if err := e.prove(len(e.keys)); err != nil {
			return err
		}
		if e.lasting() {
			lasting += len(e.keys)
		}
	}
	c, err := b.server.census()
	if err == nil && c.keys-c.expires != lasting {
		err = fmt.Errorf("%d of %d keys have no expiry, want %d", c.keys-c.expires, c.keys, lasting)
	}
	return err
}

func (b *bench) findClients(ours, trivial, redisRate *entrant) {
	title := fmt.Sprintf("token bucket, %d goroutines, %s keys, Limiter.Allow with its deadline", goroutines, measure.Thousands(b.sizes.many))
	rival := ours.against(redisRate)
	b.report.Add(title, "≥ 2× redis_rate", rival.Median >= 2, "%s", measure.TimesWithSpread(rival))
	floor := ours.against(trivial)
	b.report.Add(title, "≥ 0.55× a trivial EVALSHA without deadline", floor.Median >= 0.55, "%s", measure.TimesWithSpread(floor))

	plain := ours.allocations(context.Background(), b.sizes.counted)
	cancelable, cancel := context.WithCancel(context.Background())
	defer cancel()
	under := ours.allocations(cancelable, b.sizes.counted)
	b.report.Add(title+", allocations", "≤ 2, ≤ 5 under a cancelable context", plain <= 2.05 && under <= 5.05,
		"%.2f, and %.2f under a cancelable context", plain, under)
}
