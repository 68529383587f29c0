package faults

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/redistest"
)

// Faults of too many keys.

// floodMemory is F20: requests use more new keys than a memory store has room for.
// Known keys must keep their state.
func floodMemory(r *run) {
	const maxKeys = 20_000
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: maxKeys})
	l := &load{run: r, nodes: []penstock.Store{store}, pause: shortPause, close: func() {}}
	l.drain = func(q penstock.Request) (penstock.Decision, error) { return store.Take(context.Background(), q) }
	r.load = l
	l.start()
	l.awaitAnswers(r.scale(3000))
	l.end()
	var wg sync.WaitGroup
	var newKeys atomic.Int64
	for range 4 {
		wg.Go(func() {
			for range r.scale(fixedseed.FewerUnderRace(10 * maxKeys)) {
				key := "new " + strconv.FormatInt(newKeys.Add(1), 10)
				if _, err := store.Take(context.Background(), penstock.Request{Key: key, Limit: slowLimits[0], Cost: 1}); err != nil {
					r.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	stats := store.Stats()
	if stats.Keys > maxKeys {
		r.Errorf("the store holds %d keys, want at most %d", stats.Keys, maxKeys)
	}
	r.prove("decisions by overflow buckets", int(stats.OverflowDecisions))
}

// expireAtOnce is F31: very many windows end at the same moment. Their keys must not
// all expire at that moment.
func expireAtOnce(r *run) {
	server := r.redis("--hz", "50")
	url := "redis://" + server.Addr
	l := r.start(url)
	limit := penstock.Limit{Algorithm: penstock.FixedWindow, Align: penstock.AlignClock, Count: 1, Period: 5 * time.Second}
	n := r.scale(30_000)
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
	r.checkExpiryJitter(server, n)
	// Redis deletes the last of them slowly.
	redistest.WaitFor(r, "most keys have expired", func() bool { return expired() >= n*3/4 })
	l.awaitAnswers(300)
	r.prove("expired keys", expired())
}

// checkExpiryJitter fails if the keys of windows that end together expire together.
func (r *run) checkExpiryJitter(server *redistest.Server, keys int) {
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
