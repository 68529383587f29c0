package main

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// clients compares the limiters through their client libraries. Penstock and the
// references of its targets run next to each other.
func (b *bench) clients() error {
	if err := b.empty(); err != nil {
		return err
	}
	field := append([]contender{ours, trivial, redisRate}, ourWindows...)
	field = append(append(field, floors[:2]...), rivals[1:]...)
	runners, err := b.newRunners(field)
	defer closeAll(runners)
	if err != nil {
		return err
	}
	b.logf("clients: %d rounds of %s for each of %d limiters", b.rounds, b.length, len(runners))
	if err := runRounds(b.server, b.rounds, b.length, runners); err != nil {
		return err
	}
	if err := b.verifyGrants(runners); err != nil {
		return err
	}
	b.report.addClients(runners, b.sizes.counted)
	b.findClients(runners[0], runners[1], runners[2])
	return nil
}

// newRunners opens all contenders, after a check that each enforces a limit. The keys of that
// check are deleted, because some expire soon, and newRunner counts keys.
func (b *bench) newRunners(contenders []contender) (runners []*runner, err error) {
	for _, c := range contenders {
		if err := b.verifyLimits(c); err != nil {
			return nil, err
		}
	}
	if err := b.empty(); err != nil {
		return nil, err
	}
	keys := keyNames("user:key", b.sizes.many)
	for _, c := range contenders {
		e, err := b.newRunner(c, keys)
		if err != nil {
			return runners, err
		}
		runners = append(runners, e)
	}
	return runners, nil
}

func closeAll(runners []*runner) {
	for _, e := range runners {
		e.limiter.close()
	}
}

// keyNames returns keys of 20 bytes with a prefix of eight bytes.
func keyNames(begin string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%012d", begin, i)
	}
	return keys
}

// isFloor reports whether the contender is a floor, which never denies.
func (c contender) isFloor() bool {
	for _, f := range floors {
		if f.name == c.name {
			return true
		}
	}
	return false
}

// verifyLimits returns an error unless a limit of one unit admits one, on each of some
// keys.
func (b *bench) verifyLimits(c contender) error {
	if c.isFloor() {
		return nil
	}
	l, err := c.open(b.server.Addr, once)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	defer l.close()
	for _, key := range keyNames("user:one", 10) {
		if err := verifyLimit(l, key, time.Now); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// verifyLimit takes a key until that is denied, and returns an error unless one unit was granted.
// One more may be with each second that has begun, because go-zero's slowest limit refills
// that fast.
func verifyLimit(l limiter, key string, now func() time.Time) error {
	began := now().Unix()
	for granted := int64(0); ; {
		ok, err := l.take(context.Background(), key)
		if err != nil {
			return err
		}
		if ok {
			granted++
		}
		if most := 1 + now().Unix() - began; granted < 1 || granted > most {
			return fmt.Errorf("%d units of key %s granted, want from 1 to %d", granted, key, most)
		}
		if !ok {
			return nil
		}
	}
}

// verifyGrants returns an error unless all calls were granted, and all keys have an
// expiry but those that never had one.
func (b *bench) verifyGrants(runners []*runner) error {
	lasting := 0
	for _, e := range runners {
		if err := e.verify(len(e.keys)); err != nil {
			return err
		}
		if e.lasting() {
			lasting += len(e.keys)
		}
	}
	c, err := b.server.stats()
	if err == nil && c.keys-c.expires != lasting {
		err = fmt.Errorf("%d of %d keys have no expiry, want %d", c.keys-c.expires, c.keys, lasting)
	}
	return err
}

func (b *bench) findClients(ours, trivial, redisRate *runner) {
	title := fmt.Sprintf("token bucket, %d goroutines, %s keys, Limiter.Allow with its deadline", goroutines, measure.Thousands(b.sizes.many))
	rival := ours.ratioTo(redisRate)
	b.report.Add(title, "≥ 2× redis_rate", rival.Median >= 2, "%s", measure.TimesWithSpread(rival))
	floor := ours.ratioTo(trivial)
	b.report.Add(title, "≥ 0.55× a trivial EVALSHA without deadline", floor.Median >= 0.55, "%s", measure.TimesWithSpread(floor))

	plain := ours.allocations(context.Background(), b.sizes.counted)
	cancelable, cancel := context.WithCancel(context.Background())
	defer cancel()
	wrapper := ours.allocations(cancelable, b.sizes.counted)
	b.report.Add(title+", allocations", "≤ 2, ≤ 5 under a cancelable context", plain <= 2.05 && wrapper <= 5.05,
		"%.2f, and %.2f under a cancelable context", plain, wrapper)
}
