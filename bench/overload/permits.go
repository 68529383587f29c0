package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// permits is what permits cost on Redis: taking and releasing one, beside two takes from a token
// bucket, by the server's time and by the rate of many callers, and the bytes of a key that holds a
// hundred.
func (b *bench) permits() {
	server := redistest.StartForTest(b, redistest.Options{})
	store := harness.Must(redisstore.Open(context.Background(), "redis://"+server.Addr, &redisstore.Options{Prefix: "bench", Timeout: time.Minute}))
	defer store.Close()
	for _, held := range []int{0, 10, 100} {
		b.permitsByServer(server, store, held)
	}
	for _, held := range []int{0, 10} {
		b.permitsOfMany(store, held)
	}
	b.weighPermits(server)
}

// takePermit takes permits of a key, or releases them. All must be granted.
func takePermit(store penstock.Store, key, id string, cost int64) error {
	limit := penstock.Limit{Count: 1000, Period: 24 * time.Hour, Algorithm: penstock.Concurrent}
	d, err := store.Take(context.Background(), penstock.Request{Key: key, ID: id, Cost: cost, Limit: limit})
	if err == nil && d.Granted != cost {
		err = fmt.Errorf("permit %s: granted %d of %d", id, d.Granted, cost)
	}
	return err
}

// hold takes permits of a key that stay taken.
func hold(store penstock.Store, key string, held int) {
	for i := range held {
		harness.Check(takePermit(store, key, "holder"+strconv.Itoa(i), 1))
	}
}

// A pair is two calls: an acquire and a release of a permit, or two takes from a token bucket.
type pair func(store penstock.Store, key, id string) error

func acquireAndRelease(store penstock.Store, key, id string) error {
	if err := takePermit(store, key, id, 1); err != nil {
		return err
	}
	return takePermit(store, key, id, -1)
}

func takeTwice(store penstock.Store, key, _ string) error {
	r := penstock.Request{Key: key, Cost: 1, Limit: penstock.PerHour(1 << 30)}
	_, err1 := store.Take(context.Background(), r)
	_, err2 := store.Take(context.Background(), r)
	return cmp.Or(err1, err2)
}

// permitsByServer compares how long scripts run in the server, for a pair on a key that holds some
// permits.
func (b *bench) permitsByServer(server *redistest.Server, store penstock.Store, held int) {
	key := "held" + strconv.Itoa(held)
	hold(store, key, held)
	rounds, calls := 40, 200
	if b.Quick {
		rounds, calls = 3, 5
	}
	contender := func(do pair) *harness.Contender {
		return &harness.Contender{Measure: func(c *harness.Contender) {
			before := harness.InfoOf(server)
			for i := range calls {
				harness.Check(do(store, key, fmt.Sprintf("call%d-%d", len(c.Of("µs")), i)))
			}
			_, micros := harness.InfoOf(server).Since(before).Scripts()
			c.Add("µs", float64(micros)/float64(calls))
		}}
	}
	pairs, takes := contender(acquireAndRelease), contender(takeTwice)
	harness.TakeTurns(rounds, pairs, takes)
	ratio := pairs.To(takes, "µs")
	b.Table("Permits on Redis: the server's time, the median of the rounds", "permits held", "acquire and release", "two takes from a token bucket", "ratio").
		Row(held, fmt.Sprintf("%.1f µs", pairs.Median("µs")), fmt.Sprintf("%.1f µs", takes.Median("µs")), ratio)
	b.Find(fmt.Sprintf("acquire and release on Redis, %d held", held), "≤ 1.2× two token-bucket takes", ratio.Median <= 1.2, "%.2f×", ratio.Median)
}

// permitCallers is how many callers there are at once. Those of a limit share scripts.
const permitCallers = 64

// permitsOfMany compares the rates of many callers, each with a key of its own that holds some
// permits.
func (b *bench) permitsOfMany(store penstock.Store, held int) {
	key := func(caller int) string { return fmt.Sprintf("many%d-%d", held, caller) }
	for caller := range permitCallers {
		hold(store, key(caller), held)
	}
	rounds, calls := 20, 200
	if b.Quick {
		rounds, calls = 1, 5
	}
	contender := func(do pair) *harness.Contender {
		return &harness.Contender{Measure: func(c *harness.Contender) {
			took, err := harness.Concurrently(permitCallers, func(caller int) (err error) {
				for i := 0; i < calls && err == nil; i++ {
					err = do(store, key(caller), strconv.Itoa(i))
				}
				return err
			})
			harness.Check(err)
			c.Add("rate", float64(permitCallers*calls)/took.Seconds())
		}}
	}
	pairs, takes := contender(acquireAndRelease), contender(takeTwice)
	harness.TakeTurns(rounds, pairs, takes)
	ratio := takes.To(pairs, "rate")
	b.Table(fmt.Sprintf("Permits on Redis, %d callers: pairs a second, the median of the rounds", permitCallers),
		"permits held", "acquire and release", "two takes from a token bucket", "ratio of the times").
		Row(held, harness.Decimals(0)(pairs.Median("rate")), harness.Decimals(0)(takes.Median("rate")), ratio)
	b.Find(fmt.Sprintf("acquire and release on Redis, %d callers, %d held", permitCallers, held), "≤ 1.2× two token-bucket takes", ratio.Median <= 1.2, "%.2f×", ratio.Median)
}

// weighPermits checks the bytes of the key that holds a hundred permits.
func (b *bench) weighPermits(server *redistest.Server) {
	most := 0
	for _, key := range strings.Fields(harness.Must(server.Command("KEYS", "*held100*"))) {
		most = max(most, harness.Must(strconv.Atoi(strings.TrimSpace(harness.Must(server.Command("MEMORY", "USAGE", key))))))
	}
	b.Find("100 permits of a key on Redis", "≤ 3,200 bytes", most > 1200 && most <= 3200, "%s bytes", harness.Thousands(most))
}
