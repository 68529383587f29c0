package requestlimits

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// footprintLimits are limits of every algorithm, small and large. Keys under them are filled.
var footprintLimits = append(plainLimits(), []string{
	"1/1m", "1000000/24h", "1/1d burst=10000", "10/1h debt=0", "10/1h debt=5000", "10/1h leaky-bucket debt=5000",
	"10/1h fixed-window debt=99999999999999", "10/1h fixed-window align=clock debt=99999999999999", "10/1h sliding-window debt=60000000", "5/1h leaky-bucket burst=1000",
	"99999999/1h fixed-window", "10/1m fixed-window align=clock", "99999999999999/24h fixed-window align=clock",
	"10/month fixed-window zone=UTC", "10/year fixed-window zone=Asia/Shanghai offset=3h", "60000000/1h sliding-window",
	"1/1h rolling-window", "99999999/1h rolling-window buckets=1", "9999999/1h rolling-window buckets=300",
	"99999999999999/1h rolling-window buckets=1000",
	"1/1h sliding-log", "7/1h sliding-log", "100/1h sliding-log", "397/24d sliding-log", "10000/1h sliding-log",
	"1/1h concurrent", "7/1h concurrent", "100/24h concurrent", "10000/1h concurrent",
}...)

func plainLimits() (texts []string) {
	for _, a := range penstock.Algorithms() {
		texts = append(texts, penstock.PerHour(100).WithAlgorithm(a).String())
	}
	return texts
}

func limitOf(t testing.TB, text string) penstock.Limit {
	t.Helper()
	l, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return l
}

// fill takes all units of a key, in three calls, and with an ID if the request has one. It
// fills every part of a rolling window.
func fill(t testing.TB, s penstock.Store, r penstock.Request, sleep func(time.Duration)) {
	t.Helper()
	calls := int64(3)
	if r.Limit.Algorithm == penstock.Concurrent {
		fillPermits(t, s, r)
		return
	}
	if r.Limit.Algorithm == penstock.RollingWindow {
		calls = int64(r.Limit.Buckets) + 1
	}
	for i := range calls {
		r.Cost, r.AtMost = r.Limit.Capacity()/calls+1, true
		if r.ID != "" {
			r.ID = strconv.FormatInt(i, 10)
		}
		if _, err := s.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if charge := r; r.Limit.MaxDebt() > 0 && i == calls-1 {
			charge.Cost, charge.AtMost, charge.Overdraw = math.MaxInt64, false, true
			if _, err := s.Take(t.Context(), charge); err != nil {
				t.Fatal(err)
			}
		}
		if r.Limit.Algorithm == penstock.RollingWindow && i < calls-1 {
			sleep(r.Limit.Period / time.Duration(r.Limit.Buckets))
		}
	}
}

// fillPermits takes all permits of a key one by one, which needs the most memory, or a
// hundred at once where there are many.
func fillPermits(t testing.TB, s penstock.Store, r penstock.Request) {
	t.Helper()
	r.Cost = 1
	if r.Limit.Count > 1000 {
		r.Cost = 100
	}
	for i := range r.Limit.Count / r.Cost {
		r.ID = strconv.FormatInt(i, 10)
		if _, err := s.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

func openRedis(t testing.TB, server *redistest.Server) *redisstore.Store {
	t.Helper()
	store, err := redisstore.Open(context.Background(), "unix://"+server.Socket, &redisstore.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// The footprint is never less than what Redis says a key uses, and no key outlives it.
func TestFootprintBoundsRedisKeys(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{FakeClock: true})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sleep := func(d time.Duration) {
		now = now.Add(d)
		server.Clock.Set(now)
	}
	sleep(0)
	store := openRedis(t, server)
	for _, text := range footprintLimits {
		limit := limitOf(t, text)
		keys := []string{"k", strings.Repeat("k", 200), strings.Repeat("k", 4096), "{" + strings.Repeat("k", 255) + "}" + strings.Repeat("v", 3000)}
		if limit.Buckets > 10 {
			keys = keys[:1] // filling a long ring takes a second
		}
		keys = keys[:fixedseed.FewerUnderRace(len(keys))]
		for _, key := range keys {
			redistest.MustCommand(t, server, "FLUSHALL")
			fill(t, store, penstock.Request{Key: key, Limit: limit, ID: "id"}, sleep)
			f := footprintOf(&limit)
			for _, name := range keysOf(t, server) {
				bound, lifetime := f.bytes+nameBytes(1, len(key)), f.lifetime
				if strings.HasPrefix(name, "p!") {
					bound, lifetime = recordBytes+nameBytes(1, len(key)), IDLifetime(&limit)+expirySlack
				}
				used := number(t, redistest.MustCommand(t, server, "MEMORY", "USAGE", name, "SAMPLES", "0"))
				if used > bound || bound > 3*used+600 {
					t.Errorf("%s: %.40q uses %d bytes, footprint %d", text, name, used, bound)
				}
				if ttl := time.Duration(number(t, redistest.MustCommand(t, server, "PTTL", name))) * time.Millisecond; ttl > lifetime || ttl < 0 {
					t.Errorf("%s: %.40q expires in %v, footprint %v", text, name, ttl, lifetime)
				}
			}
		}
	}
}

// The footprint also covers what Redis needs besides keys and values: its tables.
func TestFootprintBoundsMemoryOfRedis(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{})
	store := openRedis(t, server)
	const keys = 20_000
	for _, text := range []string{"1/1h", "10/1h sliding-log", "100/1h rolling-window"} {
		limit := limitOf(t, text)
		before := number(t, redistest.InfoField(t, server, "used_memory"))
		bound := int64(0)
		rs, ds := make([]penstock.Request, 100), make([]penstock.Decision, 100)
		for i := range keys / len(rs) {
			for j := range rs {
				key := fmt.Sprintf("%d-%d", i, j)
				rs[j] = penstock.Request{Key: key, Limit: limit, Cost: limit.Capacity()}
				bound += footprintOf(&limit).bytes + nameBytes(1, len(key))
			}
			if err := store.TakeEach(t.Context(), rs, ds); err != nil {
				t.Fatal(err)
			}
		}
		if used := number(t, redistest.InfoField(t, server, "used_memory")) - before; used > bound || used < bound/4 {
			t.Errorf("%s: Redis uses %d bytes more for %d keys, footprint %d", text, used, keys, bound)
		}
	}
}

// The footprint is never less than what a memory store uses.
func TestFootprintBoundsMemoryStore(t *testing.T) {
	keys := int64(512)
	if testing.Short() {
		keys = 128
	}
	for _, text := range footprintLimits {
		limit := limitOf(t, text)
		m := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: int(keys)}) // in one shard
		for i := range keys {
			fill(t, m, penstock.Request{Key: strconv.FormatInt(i, 10), Limit: limit}, func(time.Duration) {})
		}
		const lastPage = 2048 * 8 * 16 // of each size class that logs have grown through
		if used, bound := m.Stats().Bytes, keys*footprintOf(&limit).bytes; used > bound+lastPage {
			t.Errorf("%s: %d keys use %d bytes, footprint %d", text, keys, used, bound)
		}
	}
}

func TestLongestPeriodIsRefillTimeOfBuckets(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"7/31d": 31 * day, "1/31d": 31 * day, "1/1d burst=31": 31 * day, "1/1d burst=32": 32 * day, "1/1d debt=40": 40 * day,
		"10/1d burst=1": day, "1/1d leaky-bucket burst=32": 32 * day, "0/1d": day,
		"10/31d fixed-window": 31 * day, "10/31d sliding-window": 31 * day, "10/24d sliding-log": 24 * day,
	} {
		if l := limitOf(t, text); longestPeriod(&l) != want {
			t.Errorf("%s: got %v, want %v", text, longestPeriod(&l), want)
		}
	}
	l := penstock.Limit{Count: 1, Period: time.Second, Burst: 1 << 31}
	if err := l.Validate(); err != nil || longestPeriod(&l) != 1<<31*time.Second {
		t.Errorf("got %v, %v", longestPeriod(&l), err)
	}
	l = penstock.Limit{Count: math.MaxInt64, Period: 1, Burst: math.MaxInt64} // invalid, and must not panic
	_ = footprintOf(&l)
}

func number(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func keysOf(t testing.TB, server *redistest.Server) []string {
	t.Helper()
	return strings.Fields(redistest.MustCommand(t, server, "KEYS", "*"))
}
