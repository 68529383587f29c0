package requestlimits

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

// A leftKey is what the model knows of a key: the bytes it may use, and until when.
type leftKey struct {
	bytes   int64
	expires time.Time
}

// modelBytes returns what lives now, by the model.
func modelBytes(left map[string]leftKey, now time.Time) (sum int64) {
	for _, k := range left {
		if k.expires.After(now) {
			sum += k.bytes
		}
	}
	return sum
}

// After any sequence of takes, what lives is within the bound; the ledger refuses only what
// would be over it, and accounts for nothing that has expired for longer than dropEvery.
func TestLedgerNeverExceedsBound(t *testing.T) {
	limits := []string{"1/1s", "10/1m", "10/1h name=a", "20/2h name=a", "100/1m sliding-log name=b", "400/1m sliding-log name=b", "5/1h rolling-window"}
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		const bound = 4000
		l := newByteLedger(bound, 1, func() time.Time { return now })
		left := map[string]leftKey{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 1000, 60_000, 4_000_000}).Draw(t, "ms")) * time.Millisecond)
			limit, err := penstock.ParseLimit(rapid.SampledFrom(limits).Draw(t, "limit"))
			if err != nil {
				t.Fatal(err)
			}
			r := penstock.Request{Key: strconv.Itoa(rapid.IntRange(0, 20).Draw(t, "key")), Limit: limit}
			e := l.entry(&r)
			name := fmt.Sprint(limit.Identity(), r.Key)
			old, known := left[name]
			known = known && old.expires.After(now)
			grows := e.bytes
			if known {
				grows = max(e.bytes-old.bytes, 0)
			} else {
				old = leftKey{}
			}
			if !l.reserve(&e) {
				if over := modelBytes(left, now.Add(-dropEvery)) + grows; over <= bound || grows == 0 {
					t.Fatalf("%v refused: %d bytes would live, of %d", r.Limit, over, bound)
				}
				continue
			}
			granted := rapid.Bool().Draw(t, "granted")
			l.settle(&e, granted)
			if granted || known {
				expires := now.Add(time.Duration(e.lifetime))
				if old.expires.After(expires) {
					expires = old.expires
				}
				bytes := old.bytes
				if granted {
					bytes = max(old.bytes, e.bytes)
				}
				left[name] = leftKey{bytes: bytes, expires: expires}
			}
			if live, used := modelBytes(left, now), l.bytes.Used(); live > used || used > bound {
				t.Fatalf("%d bytes live, the ledger has %d of %d", live, used, bound)
			}
		}
	})
}

// Concurrent takes of the same and of other keys never exceed the bound, and leave exactly
// what was granted.
func TestLedgerIsExactUnderConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newByteLedger(100_000, 1, nil)
		limit := penstock.PerHour(10)
		var mu sync.Mutex
		granted := map[string]int64{}
		var workers sync.WaitGroup
		for w := range 16 {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			workers.Go(func() {
				for range 2000 {
					r := penstock.Request{Key: strconv.Itoa(random.IntN(2000)), Limit: limit, Cost: 1}
					e := l.entry(&r)
					if !l.reserve(&e) {
						continue
					}
					time.Sleep(time.Duration(random.IntN(1000))) // others run
					if l.bytes.Used() > l.bytes.Max() {
						t.Errorf("%d bytes used, of %d", l.bytes.Used(), l.bytes.Max())
					}
					ok := random.IntN(3) > 0
					if ok {
						mu.Lock()
						granted[r.Key] = e.bytes
						mu.Unlock()
					}
					l.settle(&e, ok)
				}
			})
		}
		workers.Wait()
		sum := int64(0)
		for _, bytes := range granted {
			sum += bytes
		}
		if used := l.bytes.Used(); used != sum || sum < l.bytes.Max()*9/10 {
			t.Errorf("the ledger has %d bytes, %d were granted, of %d", used, sum, l.bytes.Max())
		}
		time.Sleep(3 * time.Hour)
		e := l.entry(&penstock.Request{Key: "new", Limit: limit})
		if !l.reserve(&e) || l.bytes.Used() != e.bytes {
			t.Errorf("after all expired: %d bytes used, want %d", l.bytes.Used(), e.bytes)
		}
	})
}

// A ledger needs memory in proportion to its bound only, whatever is sent.
func TestLedgerItselfIsBounded(t *testing.T) {
	const bound = 1 << 20
	l := newByteLedger(bound, 1, nil)
	for i := range 30_000 { // several times as many as fit
		e := l.entry(&penstock.Request{Key: strconv.Itoa(i), Limit: penstock.PerHour(1)})
		if l.reserve(&e) {
			l.settle(&e, true)
		}
	}
	words := 0
	for i := range l.shards {
		words += l.shards[i].entries.Slots() * ledgerSlotWidth
	}
	if words*8 > bound/3 {
		t.Errorf("%d bytes for a bound of %d", words*8, bound)
	}
}

func TestLedgerDoesNotAllocate(t *testing.T) {
	l := newByteLedger(1<<30, 1, nil)
	r := penstock.Request{Key: "user:42", Limit: penstock.PerHour(10).WithName("n"), ID: "id", Cost: 1}
	allocations := testing.AllocsPerRun(1000, func() {
		e := l.entry(&r)
		id := l.recordEntry(&r, e.hash)
		_ = l.reserve(&e) && l.reserve(&id)
		l.settle(&e, true)
		l.settle(&id, true)
	})
	if allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
}
