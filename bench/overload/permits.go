package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// permits is what permits cost on Redis: the server's time for taking and releasing one,
// beside that of two takes from a token bucket, and the bytes of a key that holds a hundred.
func (b *bench) permits() error {
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		return err
	}
	defer server.Stop()
	store, err := redisstore.Open(context.Background(), "redis://"+server.Addr, &redisstore.Options{Prefix: "bench", Timeout: time.Minute})
	if err != nil {
		return err
	}
	defer store.Close()
	t := table{title: "Permits on Redis: the server's time, the median of the rounds", head: []string{"permits held", "acquire and release", "two takes from a token bucket", "ratio"}}
	for _, held := range []int{0, 10, 100} {
		ratio, err := b.comparePermits(server, store, held, &t)
		if err != nil {
			return err
		}
		b.findings.Add(fmt.Sprintf("acquire and release on Redis, %d held", held), "≤ 1.2× two token-bucket takes", ratio <= 1.2, "%.2f×", ratio)
	}
	b.tables = append(b.tables, t)
	if err := b.permitsOfMany(store); err != nil {
		return err
	}
	return b.weighPermits(server)
}

// permitCallers is how many callers there are at once. Those of a limit share scripts.
const permitCallers = 64

// permitsOfMany compares the rates of many callers, each with a key of its own that holds some
// permits.
func (b *bench) permitsOfMany(store penstock.Store) error {
	t := table{title: fmt.Sprintf("Permits on Redis, %d callers: pairs a second, the median of the rounds", permitCallers), head: []string{"permits held", "acquire and release", "two takes from a token bucket", "ratio of the times"}}
	for _, held := range []int{0, 10} {
		pairs, takes, err := b.permitRates(store, held)
		if err != nil {
			return err
		}
		ratio := measure.SpreadOf(measure.Ratios(takes, pairs))
		t.rows = append(t.rows, []string{
			strconv.Itoa(held), fmt.Sprintf("%.0f", measure.SpreadOf(pairs).Median), fmt.Sprintf("%.0f", measure.SpreadOf(takes).Median), measure.TimesWithSpread(ratio),
		})
		b.findings.Add(fmt.Sprintf("acquire and release on Redis, %d callers, %d held", permitCallers, held), "≤ 1.2× two token-bucket takes", ratio.Median <= 1.2, "%.2f×", ratio.Median)
	}
	b.tables = append(b.tables, t)
	return nil
}

// permitRates returns the pairs a second of each round: of an acquire and a release, and of two
// takes from a token bucket.
func (b *bench) permitRates(store penstock.Store, held int) (pairs, takes []float64, err error) {
	ctx := context.Background()
	limit := penstock.Limit{Count: 20, Period: time.Hour, Algorithm: penstock.Concurrent}
	permit := func(caller int, id string, cost int64) error {
		d, err := store.Take(ctx, penstock.Request{Key: "many" + strconv.Itoa(held) + "-" + strconv.Itoa(caller), ID: id, Cost: cost, Limit: limit})
		if err == nil && d.Granted != cost {
			err = fmt.Errorf("permit %s: granted %d of %d", id, d.Granted, cost)
		}
		return err
	}
	rounds, calls := 20, 200
	if b.quick {
		rounds, calls = 1, 5
	}
	for caller := range permitCallers {
		for i := range held {
			if err := permit(caller, "holder"+strconv.Itoa(i), 1); err != nil {
				return nil, nil, err
			}
		}
	}
	for range rounds { // in turns, so that other load on the machine affects both alike
		pair, err := pairsPerSecond(calls, func(caller, i int) error {
			id := strconv.Itoa(i)
			return cmp.Or(permit(caller, id, 1), permit(caller, id, -1))
		})
		if err != nil {
			return nil, nil, err
		}
		take, err := pairsPerSecond(calls, func(caller, _ int) error {
			r := penstock.Request{Key: "many" + strconv.Itoa(caller), Cost: 1, Limit: penstock.PerHour(1 << 30)}
			_, err1 := store.Take(ctx, r)
			_, err2 := store.Take(ctx, r)
			return cmp.Or(err1, err2)
		})
		if err != nil {
			return nil, nil, err
		}
		pairs, takes = append(pairs, pair), append(takes, take)
	}
	return pairs, takes, nil
}

// pairsPerSecond calls from many goroutines.
func pairsPerSecond(calls int, pair func(caller, i int) error) (float64, error) {
	var callers sync.WaitGroup
	var failed [permitCallers]error
	begin := time.Now()
	for caller := range permitCallers {
		callers.Go(func() {
			for i := 0; i < calls && failed[caller] == nil; i++ {
				failed[caller] = pair(caller, i)
			}
		})
	}
	callers.Wait()
	return float64(permitCallers*calls) / time.Since(begin).Seconds(), errors.Join(failed[:]...)
}

// permitRequest takes one of 1,000 permits of a key.
func permitRequest(key, id string) penstock.Request {
	return penstock.Request{Key: key, ID: id, Cost: 1, Limit: penstock.Limit{Count: 1000, Period: 24 * time.Hour, Algorithm: penstock.Concurrent}}
}

func (b *bench) comparePermits(server *redistest.Server, store penstock.Store, held int, t *table) (float64, error) {
	ctx, key := context.Background(), "held"+strconv.Itoa(held)
	for i := range held {
		if _, err := store.Take(ctx, permitRequest(key, "holder"+strconv.Itoa(i))); err != nil {
			return 0, err
		}
	}
	bucket := penstock.Request{Key: key, Cost: 1, Limit: penstock.PerHour(1 << 30)}
	rounds, calls := 40, 200
	if b.quick {
		rounds, calls = 3, 5
	}
	var pairs, takes []float64
	for round := range rounds {
		pair, err := serverTime(server, calls, func(i int) error {
			r := permitRequest(key, fmt.Sprintf("call%d-%d", round, i))
			d, err := store.Take(ctx, r)
			if err == nil && !d.Allowed {
				err = fmt.Errorf("denied: %v", d)
			}
			if err == nil {
				r.Cost = -1
				_, err = store.Take(ctx, r)
			}
			return err
		})
		if err != nil {
			return 0, err
		}
		take, err := serverTime(server, 2*calls, func(int) error {
			_, err := store.Take(ctx, bucket)
			return err
		})
		if err != nil {
			return 0, err
		}
		pairs, takes = append(pairs, pair), append(takes, 2*take)
	}
	ratio := measure.SpreadOf(measure.Ratios(pairs, takes))
	t.rows = append(t.rows, []string{
		strconv.Itoa(held), fmt.Sprintf("%.1f µs", measure.SpreadOf(pairs).Median), fmt.Sprintf("%.1f µs", measure.SpreadOf(takes).Median), measure.TimesWithSpread(ratio),
	})
	return ratio.Median, nil
}

var scriptTime = regexp.MustCompile(`cmdstat_(?:evalsha|fcall):calls=(\d+),usec=(\d+)`)

// serverTime returns how long scripts run in the server for one call, in microseconds.
func serverTime(server *redistest.Server, calls int, call func(i int) error) (float64, error) {
	if _, err := server.Command("CONFIG", "RESETSTAT"); err != nil {
		return 0, err
	}
	for i := range calls {
		if err := call(i); err != nil {
			return 0, err
		}
	}
	info, err := server.Command("INFO", "commandstats")
	if err != nil {
		return 0, err
	}
	m := scriptTime.FindStringSubmatch(info)
	if m == nil {
		return 0, fmt.Errorf("no scripts in %q", info)
	}
	usec, err := strconv.ParseFloat(m[2], 64)
	return usec / float64(calls), err
}

// weighPermits checks the bytes of the key that holds a hundred permits.
func (b *bench) weighPermits(server *redistest.Server) error {
	all, err := server.Command("KEYS", "*held100*")
	if err != nil {
		return err
	}
	most := 0
	for _, key := range strings.Fields(all) {
		text, err := server.Command("MEMORY", "USAGE", key)
		if err != nil {
			return err
		}
		bytes, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		most = max(most, bytes)
	}
	b.findings.Add("100 permits of a key on Redis", "≤ 3,200 bytes", most > 1200 && most <= 3200, "%s bytes", measure.Thousands(most))
	return nil
}
