package penstock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A TakeAll of known keys decides as a memoryBatch does, whatever came before: charges that overdraw a key, clocks that step back, keys that are new to the store.
func TestMemoryTakeAllOfKnownKeysDecidesAsAnyBatch(t *testing.T) {
	t.Parallel()
	var known, denied int
	for seed := range uint64(20) {
		p := newKnownPair(seed)
		for range 300 {
			p.step(t)
		}
		known, denied = known+p.known, denied+p.denied
	}
	if known < 1000 || denied < 200 {
		t.Errorf("%d batches of known keys, %d of them denied: the test proves nothing", known, denied)
	}
}

// A knownPair is two stores with one clock: one decides all batches in the general way.
type knownPair struct {
	rand          *rand.Rand
	now           time.Time
	fast, general *Memory
	known, denied int
}

// newKnownPair returns a pair whose clock begins in 1970 if the seed is odd, in the bucket 0 of
// rolling windows.
func newKnownPair(seed uint64) *knownPair {
	p := &knownPair{rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_700_000_000, 0)}
	if seed%2 == 1 {
		p.now = time.Unix(0, 0)
	}
	o := &MemoryOptions{MaxKeys: 10_000, Now: func() time.Time { return p.now }}
	p.fast, p.general = NewMemory(o), NewMemory(o)
	return p
}

// limitsInSlots are limits whose states are in the words of a slot, those of rolling windows
// for as long as a bucket lasts.
var limitsInSlots = []Limit{
	{Count: 10, Period: time.Second},
	{Count: 7, Period: time.Minute, Burst: 12},
	{Algorithm: LeakyBucket, Count: 5, Period: time.Second},
	{Algorithm: FixedWindow, Count: 8, Period: time.Second},
	{Algorithm: FixedWindow, Count: 8, Period: time.Second, Align: AlignClock},
	{Algorithm: FixedWindow, Count: 20, Align: AlignDay},
	{Algorithm: SlidingWindow, Count: 9, Period: time.Second},
	{Algorithm: RollingWindow, Count: 30, Period: 20 * time.Second, Buckets: 2},
}

func (p *knownPair) step(t *testing.T) {
	t.Helper()
	p.now = p.now.Add(time.Duration(p.rand.IntN(300)-20) * time.Millisecond)
	if p.rand.IntN(8) == 0 {
		r := p.request()
		r.Cost, r.KeepFree, r.MaxDelay, r.Overdraw = 1+p.rand.Int64N(15), 0, 0, r.Limit.canOwe()
		if p.rand.IntN(3) == 0 {
			r.Cost, r.Overdraw = Reset, false
		}
		d1, err1 := p.fast.Take(context.Background(), r)
		d2, err2 := p.general.Take(context.Background(), r)
		p.compare(t, []Request{r}, []Decision{d1}, []Decision{d2}, err1, err2)
		return
	}
	rs := make([]Request, 1+p.rand.IntN(5))
	for i := range rs {
		rs[i] = p.request()
	}
	fast, general := make([]Decision, len(rs)), make([]Decision, len(rs))
	fast[0].Source, general[0].Source = SourceFallback, SourceFallback // of an earlier use
	var err error
	if p.fast.takeAllFast(rs, fast) {
		p.known++
		if slices.ContainsFunc(fast, func(d Decision) bool { return !d.Allowed }) {
			p.denied++
		}
	} else {
		err = p.fast.takeAll(rs, fast)
	}
	wantErr := p.general.takeAll(rs, general)
	p.compare(t, rs, fast, general, err, wantErr)
}

func (p *knownPair) request() Request {
	i := p.rand.IntN(len(limitsInSlots))
	r := Request{Key: fmt.Sprint("key", p.rand.IntN(2)), Limit: limitsInSlots[i], Cost: p.rand.Int64N(4)}
	switch p.rand.IntN(6) {
	case 0:
		r.KeepFree = p.rand.Int64N(5)
	case 1:
		r.MaxDelay = time.Duration(p.rand.IntN(2000)) * time.Millisecond
	case 2:
		r.Cost = 1
	}
	return r
}

// What isSimple accepts, TakeAll accepts too: it is asked instead of validateForAll.
func TestRequestIsSimpleOnlyIfValidForAll(t *testing.T) {
	pick := rand.New(rand.NewPCG(1, 2))
	flag := func() bool { return pick.IntN(4) == 0 }
	simple := 0
	for range 20_000 {
		r := Request{
			Key: []string{"k", "k", ""}[pick.IntN(3)], Limit: limitsInSlots[pick.IntN(len(limitsInSlots))],
			Cost: pick.Int64N(4) - 1, MaxDelay: time.Duration(pick.IntN(4) - 1), KeepFree: pick.Int64N(4) - 1,
			AtMost: flag(), Overdraw: flag(), Settle: flag(), NewID: flag(),
			Hold: []time.Duration{0, 0, -1, 100 * time.Hour}[pick.IntN(4)], ID: []string{"", "", "id"}[pick.IntN(3)],
		}
		if !r.isSimple() {
			continue
		}
		simple++
		if err := r.validateForAll(); err != nil || r.ID != "" || r.Overdraw {
			t.Fatalf("%+v is simple, and TakeAll says %v", r, err)
		}
	}
	if simple < 100 {
		t.Errorf("only %d simple requests: the test proves nothing", simple)
	}
}

func (p *knownPair) compare(t *testing.T, rs []Request, fast, general []Decision, err1, err2 error) {
	t.Helper()
	if !slices.Equal(fast, general) || fmt.Sprint(err1) != fmt.Sprint(err2) {
		t.Fatalf("%+v:\ngot  %v, %v\nwant %v, %v", rs, fast, err1, general, err2)
	}
}

func TestMemoryTakeAllOfKnownKeysDoesNotAllocate(t *testing.T) {
	m := NewMemory(nil)
	rs, ds := make([]Request, 5), make([]Decision, 5)
	for i := range rs {
		rs[i] = Request{Key: fmt.Sprint("key", i), Limit: limitsInSlots[i], Cost: 1}
	}
	take := func() {
		if err := m.TakeAll(context.Background(), rs, ds); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, take); n > 0 { // soon these are denials
		t.Errorf("a TakeAll of known keys allocates %v times", n)
	}
}
