package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// goroutines is the number of concurrent callers, as in a busy server.
const goroutines = 64

// newLoad returns a load by goroutines. call makes the i-th call.
func newLoad(name string, goroutines int, meter harness.Meter, call func(i int) (bool, error)) *harness.Load {
	return harness.NewLoad(name, goroutines, meter, func(_, from, calls int) (t harness.Counts) {
		for i := from; i < from+calls; i++ {
			t.Count(call(i))
		}
		return t
	})
}

// A client calls a limiter through its client library. Its figures are microseconds of processor: of
// this process, and of the server.
type client struct {
	*harness.Load
	library
	limiter limiter
	ctx     context.Context
	keys    []string
}

// clients compares the limiters through their client libraries. Penstock and the
// references of its targets run next to each other.
func (b *bench) clients() {
	libraries := slices.Concat([]library{ours, trivial, redisRate}, ourWindows, floors[:2], rivals[1:])
	for _, l := range libraries {
		b.verifyLimits(l)
	}
	b.server.empty() // some keys of these checks expire soon, and newClient counts keys
	keys := keyNames("user:key", b.Size(10_000, 200))
	var clients []*client
	for _, l := range libraries {
		c := b.newClient(l, keys)
		defer c.limiter.close()
		clients = append(clients, c)
	}
	b.Logf("clients: %d rounds of %s for each of %d limiters", b.Rounds, b.Turn, len(clients))
	for _, c := range clients {
		c.Calibrate(b.Turn, goroutines)
	}
	harness.TakeTurns(b.Rounds, clients...)
	b.verifyGrants(clients)
	t := b.Table(fmt.Sprintf("Through client libraries, %d goroutines: medians of the rounds, in brackets the 10th to the 90th percentile", goroutines),
		"limiter", "thousand calls a second", "to a trivial EVALSHA", "to redis_rate", "client µs a call", "server µs a call", "allocations")
	for _, c := range clients {
		row := append([]any{c.Name, harness.Decimals(0)(c.Median("rate") / 1000), c.To(clients[1], "rate"), c.To(clients[2], "rate")}, c.Medians(1, "client", "server")...)
		t.Row(append(row, harness.Decimals(1)(c.Allocations(b.Size(50_000, 1_000))))...)
	}
	b.findClients(clients[0], clients[1], clients[2])
}

func (b *bench) findClients(ours, trivial, redisRate *client) {
	title := fmt.Sprintf("token bucket, %d goroutines, %s keys, Limiter.Allow with its deadline", goroutines, harness.Thousands(b.Size(10_000, 200)))
	b.FindAtLeast(title, ours.To(redisRate, "rate"), 2, "redis_rate")
	b.FindAtLeast(title, ours.To(trivial, "rate"), 0.55, "a trivial EVALSHA without deadline")
	plain := ours.Allocations(b.Size(50_000, 1_000))
	cancelable, cancel := context.WithCancel(context.Background())
	defer cancel()
	ours.ctx = cancelable
	wrapper := ours.Allocations(b.Size(50_000, 1_000))
	b.Find(title+", allocations", "≤ 2, ≤ 5 under a cancelable context", plain <= 2.05 && wrapper <= 5.05,
		"%.2f, and %.2f under a cancelable context", plain, wrapper)
}

// newClient opens a limiter and takes each key once, and verifies that this created the
// expected number of keys in Redis, with an expiry.
func (b *bench) newClient(l library, keys []string) *client {
	before := b.server.info()
	c := &client{library: l, limiter: l.open(b.server.Addr, ample), keys: keys, ctx: context.Background()}
	c.Load = newLoad(l.name, goroutines, func() map[string]float64 {
		user, system := harness.Processor()
		return map[string]float64{"client": user + system, "server": 1e6 * b.server.info().CPU}
	}, func(i int) (bool, error) { return c.limiter.take(c.ctx, keys[i%len(keys)]) })
	c.Run(len(keys))
	d, want := b.server.info().Since(before), l.perKey*len(keys)
	if d.Keys != want || (d.Expires != want && !l.lasting()) {
		b.Fatalf("%s: %d new keys, %d with an expiry; want %d", l.name, d.Keys, d.Expires, want)
	}
	harness.Check(c.Total.Verify(c.Name, len(keys), false))
	return c
}

// keyNames returns keys of 20 bytes with a prefix of eight bytes.
func keyNames(begin string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%012d", begin, i)
	}
	return keys
}

// isFloor reports whether this is a floor, which never denies.
func (l library) isFloor() bool {
	return slices.ContainsFunc(floors, func(f library) bool { return f.name == l.name })
}

// lasting reports whether the keys have no expiry: those of INCR, which is no limiter.
func (l library) lasting() bool { return l.name == floors[1].name }

// verifyLimits ends the case unless a limit of one unit admits one, on each of some keys.
func (b *bench) verifyLimits(l library) {
	if l.isFloor() {
		return
	}
	opened := l.open(b.server.Addr, once)
	defer opened.close()
	for _, key := range keyNames("user:one", 10) {
		verifyLimit(l.name, opened, key, time.Now)
	}
}

// verifyLimit takes a key until that is denied, and ends the case unless one unit was granted.
// One more may be with each second that has begun, because go-zero's slowest limit refills
// that fast.
func verifyLimit(name string, l limiter, key string, now func() time.Time) {
	began, granted := now().Unix(), int64(0)
	for ok := true; ok; {
		if ok = harness.Must(l.take(context.Background(), key)); ok {
			granted++
		}
		if most := 1 + now().Unix() - began; granted < 1 || granted > most {
			harness.Failf("%s: %d units of key %s granted, want from 1 to %d", name, granted, key, most)
		}
	}
}

// verifyGrants ends the case unless all calls were granted, and all keys have an expiry but those that
// never had one.
func (b *bench) verifyGrants(clients []*client) {
	lasting := 0
	for _, c := range clients {
		harness.Check(c.Total.Verify(c.Name, len(c.keys), false))
		if c.lasting() {
			lasting += len(c.keys)
		}
	}
	if i := b.server.info(); i.Keys-i.Expires != lasting {
		b.Fatalf("%d of %d keys have no expiry, want %d", i.Keys-i.Expires, i.Keys, lasting)
	}
}
