package penstock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A TakeAll of known keys decides as a memoryBatch does, and so does TakePrepared, whatever came
// before: charges that overdraw a key, clocks that step back, keys that are new to the store.
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

// A knownPair is stores with one clock: one decides all batches in the general way, one has
// prepared takes where it can.
type knownPair struct {
	rand                    *rand.Rand
	now                     time.Time
	fast, general, prepared *Memory
	known, denied           int
}

// newKnownPair returns a pair whose clock begins in 1970 if the seed is odd, in the bucket 0 of
// rolling windows.
func newKnownPair(seed uint64) *knownPair {
	p := &knownPair{rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_700_000_000, 0)}
	if seed%2 == 1 {
		p.now = time.Unix(0, 0)
	}
	o := &MemoryOptions{MaxKeys: 10_000, Now: func() time.Time { return p.now }}
	p.fast, p.general, p.prepared = NewMemory(o), NewMemory(o), NewMemory(o)
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
		d3, err3 := p.prepared.Take(context.Background(), r)
		p.compare(t, []Request{r}, []Decision{d3}, []Decision{d2}, err3, err2)
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
	prepared, err := takePrepared(t, p.prepared, rs)
	p.compare(t, rs, prepared, general, err, wantErr)
}

// takePrepared takes what the requests ask for. Those with a MaxDelay cannot be prepared.
func takePrepared(t *testing.T, m *Memory, rs []Request) ([]Decision, error) {
	t.Helper()
	takes, ds := make([]PreparedTake, len(rs)), make([]Decision, len(rs))
	for i, r := range rs {
		if r.MaxDelay > 0 {
			return ds, m.TakeAll(context.Background(), rs, ds)
		}
		lim, err := New(m, r.Limit)
		if err != nil {
			t.Fatal(err)
		}
		ds[i].Source = SourceFallback // of an earlier use
		takes[i] = lim.KeepFree(r.KeepFree).Prepare()
		takes[i].Key, takes[i].Cost, takes[i].Decision = r.Key, r.Cost, &ds[i]
	}
	return ds, m.TakePrepared(context.Background(), takes)
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
	takes := make([]PreparedTake, len(rs))
	for i := range takes {
		lim, err := New(m, rs[i].Limit)
		if err != nil {
			t.Fatal(err)
		}
		takes[i] = lim.Prepare()
		takes[i].Key, takes[i].Decision = rs[i].Key, &ds[i]
	}
	take = func() {
		if err := errors.Join(m.TakePrepared(context.Background(), takes), m.TakePrepared(context.Background(), takes[:1])); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, take); n > 0 {
		t.Errorf("prepared takes of known keys allocate %v times", n)
	}
}

// What TakePrepared cannot decide fast, it decides as TakeAll does.
func TestMemoryTakePreparedDecidesWhatTakeAllDoes(t *testing.T) {
	now := func() time.Time { return time.Unix(1_700_000_000, 0) }
	log := Limit{Algorithm: SlidingLog, Count: 3, Period: time.Second}
	permits := Limit{Algorithm: Concurrent, Count: 3, Period: time.Second}
	bucket := limitsInSlots[0]
	many := slices.Repeat([]Request{{Key: "k", Limit: bucket, Cost: 1}}, maxFastBatch+1)
	for i := range many {
		many[i].Key = fmt.Sprint("many", i)
	}
	for _, rs := range [][]Request{
		{},
		many,
		{{Key: "k", Limit: log, Cost: 1}},
		{{Key: "k", Limit: log, Cost: 1}, {Key: "k", Limit: bucket, Cost: 1}},
		{{Key: "k", Limit: bucket, Cost: 6}, {Key: "k", Limit: bucket, Cost: 6}}, // costs of one key add up
		{{Key: "k", Limit: bucket, Cost: 5}, {Key: "k", Limit: bucket, Cost: 5}},
		{{Key: "k", Limit: bucket}, {Key: "l", Limit: bucket, Cost: 11}},
		{{Key: "", Limit: bucket, Cost: 1}},
		{{Key: "k", Limit: bucket, Cost: 1}, {Key: "k", Limit: log, Cost: -1}},
		{{Key: "k", Limit: permits, Cost: 1}},
	} {
		prepared, want := NewMemory(&MemoryOptions{Now: now}), NewMemory(&MemoryOptions{Now: now})
		for range 3 { // keys are new only the first time
			ds := make([]Decision, len(rs))
			wantErr := want.TakeAll(context.Background(), rs, ds)
			got, err := takePrepared(t, prepared, rs)
			if !slices.Equal(got, ds) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Errorf("%+v:\ngot  %v, %v\nwant %v, %v", rs, got, err, ds, wantErr)
			}
		}
	}
}

// A take that was prepared for another store, with another hash and clock, counts as any other.
func TestMemoryTakePreparedForAnotherStore(t *testing.T) {
	limit := Limit{Count: 2, Period: time.Hour}
	other, err := New(NewMemory(&MemoryOptions{Durable: true, Tick: time.Second}), limit)
	if err != nil {
		t.Fatal(err)
	}
	m := NewMemory(nil)
	var d Decision
	for i := range 3 {
		take := other.Prepare()
		take.Key, take.Decision = "k", &d
		if err := m.TakePrepared(context.Background(), []PreparedTake{take}); err != nil || d.Allowed != (i == 0) {
			t.Fatalf("take %d: got %v, %v", i, d, err)
		}
		if got, err := m.Take(context.Background(), Request{Key: "k", Limit: limit, Cost: 1}); err != nil || got.Allowed != (i == 0) {
			t.Fatalf("take %d as a request: got %v, %v", i, got, err)
		}
	}
}

func TestMemoryTakePreparedRejectsWhatWasNotPrepared(t *testing.T) {
	m, d := NewMemory(nil), Decision{Allowed: true}
	if err := m.TakePrepared(context.Background(), []PreparedTake{{Key: "k", Cost: 1, Decision: &d}}); !errors.Is(err, ErrBadLimit) || d.Allowed {
		t.Errorf("without a limit: got %v, %v", d, err)
	}
	lim, err := New(m, limitsInSlots[0])
	if err != nil {
		t.Fatal(err)
	}
	take := lim.Prepare()
	take.Key = "k"
	if err := m.TakePrepared(context.Background(), []PreparedTake{take}); !errors.Is(err, errNoDecision) {
		t.Errorf("without a decision: got %v", err)
	}
	d.Allowed, take.Decision = true, &d
	if err := m.TakePrepared(context.Background(), []PreparedTake{take, lim.Prepare()}); !errors.Is(err, errNoDecision) || d.Allowed {
		t.Errorf("one without a decision: got %v, %v", d, err)
	}
	negative := lim.KeepFree(-1).Prepare()
	d.Allowed, negative.Key, negative.Decision = true, "k", &d
	if err := m.TakePrepared(context.Background(), []PreparedTake{negative}); !errors.Is(err, ErrBadCost) || d.Allowed {
		t.Errorf("with a negative KeepFree: got %v, %v", d, err)
	}
}
