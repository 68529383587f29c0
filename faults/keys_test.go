package faults

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// These faults are too many keys.

// floodMemory is F20: strangers ask under more keys than a store in memory has
// places for. Those who were there before must not get back what they have spent.
func floodMemory(r *run) {
	const places = 20_000
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: places})
	l := &load{run: r, nodes: []penstock.Store{store}, pace: brisk, close: func() {}}
	l.drain = func(q penstock.Request) (penstock.Decision, error) { return store.Take(context.Background(), q) }
	r.load = l
	l.start()
	l.answers(r.few(3000))
	l.end()
	var wg sync.WaitGroup
	var strangers atomic.Int64
	for range 4 {
		wg.Go(func() {
			for range r.few(10 * places) {
				key := "stranger " + strconv.FormatInt(strangers.Add(1), 10)
				if _, err := store.Take(context.Background(), penstock.Request{Key: key, Limit: slowLimits[0], Cost: 1}); err != nil {
					r.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	stats := store.Stats()
	if stats.Keys > places {
		r.Errorf("%d places are taken, want at most %d", stats.Keys, places)
	}
	r.happened("requests of strangers for whom there was no place", int(stats.OverflowDecisions))
}

// expireAtOnce is F31: very many windows end at the same moment. Their keys must
// not all expire in it.
func expireAtOnce(r *run) {
	server := r.redis("--hz", "50")
	url := "redis://" + server.Addr
	l := r.start(url)
	limit := penstock.Limit{Algorithm: penstock.FixedWindow, Align: penstock.AlignClock, Count: 1, Period: 5 * time.Second}
	n := r.few(30_000)
	store := r.open(url, time.Minute)
	rs, ds := make([]penstock.Request, 1000), make([]penstock.Decision, 1000)
	for i := range n {
		rs[i%len(rs)] = penstock.Request{Key: "window " + strconv.Itoa(i), Limit: limit, Cost: 1}
		if (i+1)%len(rs) == 0 {
			if err := penstock.TakeEach(context.Background(), store, rs, ds); err != nil {
				r.Fatal(err)
			}
		}
	}
	expired := func() int {
		n, err := strconv.Atoi(redistest.InfoField(r, server, "expired_keys"))
		if err != nil {
			r.Fatal(err)
		}
		return n
	}
	r.spread(server, n)
	// Redis looks for the last of them at leisure.
	redistest.WaitFor(r, "the windows are over, and most keys gone", func() bool { return expired() >= n*3/4 })
	l.answers(300)
	r.happened("keys that expired", expired())
}

// spread fails if the keys of windows that end together expire together.
func (r *run) spread(server *redistest.Server, keys int) {
	r.Helper()
	text := redistest.MustCommand(r, server, "EVAL", `
		local at, most = {}, 0
		for _, name in ipairs(redis.call('KEYS', '*window*')) do
			local t = redis.call('PEXPIRETIME', name)
			at[t] = (at[t] or 0) + 1
			most = math.max(most, at[t])
		end
		return most`, "0")
	most, err := strconv.Atoi(text)
	if err != nil {
		r.Fatal(err)
	}
	r.Logf("at most %d of %d keys expire in one millisecond", most, keys)
	if most > keys/25 {
		r.Errorf("%d of %d keys expire in one millisecond", most, keys)
	}
}
