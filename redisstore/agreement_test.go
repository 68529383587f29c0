package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/redisstore"
)

// operations returns the number of operations to compare: 5,000 with -short, or 500 under the race
// detector, because they come one after the other; 50,000 without, or PENSTOCK_OPERATIONS.
func operations(t *testing.T) int {
	t.Helper()
	text := os.Getenv("PENSTOCK_OPERATIONS")
	switch {
	case text == "" && testing.Short():
		return fixedseed.FewerUnderRace(5_000)
	case text == "":
		return 50_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// storetest compares every store with a model on small limits. This test compares
// Redis with memory on the whole range of limits: periods from a millisecond to a
// year, counts that fill every bit a script has, changed while they are in use.
func TestStoreAgreesWithMemory(t *testing.T) {
	seed := fixedseed.Seed()
	w := &storePair{
		T:      t,
		random: rand.New(rand.NewPCG(seed, 0)),
		redis:  openFakeClock(t, redisstore.Options{}),
	}
	w.memory = penstock.NewMemory(&penstock.MemoryOptions{
		Now: func() time.Time { return w.now }, Tick: time.Millisecond,
	})
	w.warmUp()
	most := operations(t)
	for w.compared < most && !t.Failed() {
		w.newRound()
		for range 200 {
			if w.randomStep(); t.Failed() {
				t.Logf("seed %d, after %d operations:\n%s", seed, w.compared, w.trace.String())
				return
			}
		}
	}
}

// A storePair runs the same requests on Redis and on memory, with a few keys and limits.
type storePair struct {
	*testing.T
	random   *rand.Rand
	redis    *redisstore.Store
	memory   *penstock.Memory
	now      time.Time
	compared int
	together bool // whether the requests are those of a TakeAll
	small    bool // whether counts and periods are so small that edges of several kinds coincide

	limits   []penstock.Limit
	keys     [3]string
	keyCount int
	// When the state and the records of a key expire, or earlier. After a step back the
	// stores may differ on a key that had expired before.
	ends   map[string]map[any]time.Time
	grants []penstock.Request // the takes and charges under an ID that may be settled
	hints  []time.Duration    // durations in the last decisions
	trace  strings.Builder
}

// warmUp loads all scripts. A script that is not loaded would be sent after the other
// calls of a TakeEach and change their order.
func (w *storePair) warmUp() {
	for a := range penstock.Concurrent + 1 {
		for _, align := range []penstock.Align{penstock.AlignFirst, penstock.AlignClock} {
			for _, id := range []string{"", "x"} {
				l := penstock.Limit{Algorithm: a, Count: 1, Period: time.Second, Align: align}
				r := penstock.Request{Key: "warm", Limit: l, Cost: 1, ID: id}
				if r.Validate() != nil {
					continue // only fixed windows can be aligned, and permits need an ID
				}
				if _, err := w.redis.Take(context.Background(), r); err != nil {
					w.Fatal(err)
				}
			}
		}
	}
}

// newRound starts with new keys, new limits and another time.
func (w *storePair) newRound() {
	w.trace.Reset()
	w.small = w.random.IntN(3) == 0
	w.setClock(time.UnixMilli(1_577_836_800_000 + w.random.Int64N(12*365*86_400_000)))
	w.ends = map[string]map[any]time.Time{}
	for i := range w.keys {
		w.newKey(i)
	}
	w.limits = nil
	for i := range 4 {
		l := w.randomLimit(penstock.Algorithm(w.random.IntN(7)))
		if w.random.IntN(2) == 0 {
			l.Name = fmt.Sprintf("n%d", i)
		}
		w.limits = append(w.limits, l)
		fmt.Fprintf(&w.trace, "limit %d: %s\n", i, l)
	}
}

func (w *storePair) newKey(i int) {
	w.grants = slices.DeleteFunc(w.grants, func(r penstock.Request) bool { return r.Key == w.keys[i] })
	w.keyCount++
	w.keys[i] = fmt.Sprintf("k%d", w.keyCount)
	w.ends[w.keys[i]] = map[any]time.Time{}
}

func (w *storePair) setClock(now time.Time) {
	w.now = now
	fakeClockServer.Clock.Set(now)
	fmt.Fprintf(&w.trace, "at %s\n", now.UTC().Format("2006-01-02 15:04:05.000"))
}

// randomStep makes a request, moves the clock or changes a limit.
func (w *storePair) randomStep() {
	switch n := w.random.IntN(26); {
	case n < 8:
		w.compare(w.take(w.randomRequest()))
	case n < 10:
		w.compareBatch()
	case n < 12:
		w.compareTakeEach()
	case n < 13:
		w.compareTakeAll()
	case n < 14:
		w.compareTakeAllBatch()
	case n < 16:
		w.compareSettle()
	case n < 19:
		w.setClock(w.now.Add(w.randomStepSize()))
	case n < 20:
		w.stepBack()
	case n < 22:
		w.changeLimit()
	case n < 24:
		w.compareOnceBatch()
	case n < 25:
		w.compareSettleBatch()
	default:
		w.compareTakeEachBatch()
	}
}

// magnitude returns a number from 0 to most, logarithmically distributed.
func (w *storePair) magnitude(most int64) int64 {
	n := int64(math.Exp2(w.random.Float64() * math.Log2(float64(most))))
	return min(n-1+w.random.Int64N(2), most)
}

// mostCounted is the largest Count of a window on Redis.
const mostCounted = 99_999_999_999_999

func (w *storePair) randomPeriod() time.Duration {
	most := int64(366 * 86_400_000)
	if w.small {
		most = 8
	}
	period := time.Duration(1+w.magnitude(most-1)) * time.Millisecond
	if w.random.IntN(4) == 0 { // the clock of Redis has no part of a millisecond
		period -= time.Duration(w.random.IntN(int(time.Millisecond)))
	}
	return period
}

func (w *storePair) randomCount(most int64) int64 {
	if w.small {
		most = 8
	}
	return w.magnitude(most)
}

// randomLimit returns any valid limit of an algorithm.
func (w *storePair) randomLimit(a penstock.Algorithm) penstock.Limit {
	for {
		l := penstock.Limit{Algorithm: a, Count: w.randomCount(mostCounted), Period: w.randomPeriod()}
		switch a {
		case penstock.TokenBucket, penstock.LeakyBucket:
			l.Burst = w.randomCount(1 << 52)
		case penstock.RollingWindow:
			l.Buckets = int(w.randomCount(40))
		case penstock.FixedWindow:
			w.align(&l)
		case penstock.SlidingWindow:
			l.Count = w.randomCount(1<<26 - 1)
		case penstock.SlidingLog:
			l.Count = w.randomCount(300)
		case penstock.Concurrent:
			l.Count, l.Period = w.randomCount(300), min(l.Period, 24*time.Hour)
		}
		l.Debt = w.randomDebt()
		if l.Validate() == nil {
			return l
		}
	}
}

// randomDebt returns the default, no debt, or any number.
func (w *storePair) randomDebt() int64 {
	switch w.random.IntN(4) {
	case 0:
		return penstock.NoDebt
	case 1:
		return w.magnitude(mostCounted)
	}
	return 0
}

func (w *storePair) align(l *penstock.Limit) {
	l.Align = penstock.Align(w.random.IntN(6))
	l.Offset = time.Duration(w.random.Int64N(int64(l.Period)))
	if w.random.IntN(2) == 0 {
		l.Offset = l.Offset.Truncate(time.Millisecond)
	}
	if l.Align > penstock.AlignClock {
		l.Period = 0
		l.Zone = []string{"UTC", "Europe/Berlin", "Asia/Kathmandu", "Africa/Cairo"}[w.random.IntN(4)]
		l.Offset = time.Duration(w.random.Int64N(86_400_000)) * time.Millisecond
	}
	if w.random.IntN(2) == 0 { // windows that end on a whole second have their own encoding
		l.Period = l.Period.Truncate(time.Second)
		l.Offset = l.Offset.Truncate(time.Second)
	}
}

// changeLimit changes the count of a limit; a bucket's rate may change too.
func (w *storePair) changeLimit() {
	i := w.random.IntN(len(w.limits))
	l := w.limits[i]
	l.Count, l.Debt = w.randomLimit(l.Algorithm).Count, w.randomDebt()
	if l.Algorithm <= penstock.LeakyBucket {
		if l.Burst = w.randomCount(1 << 52); w.random.IntN(2) == 0 {
			l.Period = w.randomPeriod()
		}
	}
	if l.Validate() == nil {
		w.limits[i] = l
		fmt.Fprintf(&w.trace, "limit %d: %s\n", i, l)
	}
}

func (w *storePair) randomRequest() penstock.Request {
	r := w.randomTakeAllRequest()
	most := max(r.Limit.Count, r.Limit.Burst, 1)
	switch w.random.IntN(10) {
	case 0:
		r.Cost = 0
	case 1, 2:
		r.Cost = -1 - w.magnitude(most)
	case 3:
		r.Cost = penstock.Reset
	case 4:
		r.Cost = []int64{math.MaxInt64, -math.MaxInt64, most, most + 1}[w.random.IntN(4)]
	}
	r.AtMost = r.Cost >= 0 && w.random.IntN(4) == 0
	if r.Cost != penstock.Reset && w.random.IntN(4) == 0 {
		r.ID, r.Hold = []string{"x", "y"}[w.random.IntN(2)], w.randomHold()
	}
	if r.Limit.Algorithm == penstock.Concurrent {
		return w.underPermit(r)
	}
	return w.mayOverdraw(r)
}

// underPermit returns the request with an ID, and a cost that permits can have.
func (w *storePair) underPermit(r penstock.Request) penstock.Request {
	r.Cost = min(r.Cost, 100)
	if r.Hold = 0; r.Cost != penstock.Reset {
		r.ID = w.randomID()
		r.NewID = w.random.IntN(4) == 0
	}
	return r
}

func (w *storePair) randomID() string { return []string{"u", "v", "w", "x", "y"}[w.random.IntN(5)] }

// randomHold returns how long an ID is to be remembered, mostly as long as the limit says.
func (w *storePair) randomHold() time.Duration {
	if w.random.IntN(3) > 0 {
		return 0
	}
	return time.Duration(w.magnitude(int64(24 * time.Hour)))
}

// mayOverdraw turns some takes into charges.
func (w *storePair) mayOverdraw(r penstock.Request) penstock.Request {
	if r.Cost > 0 && r.Limit.Algorithm <= penstock.SlidingWindow && w.random.IntN(4) == 0 {
		r.AtMost, r.MaxDelay, r.Overdraw = false, 0, true
	}
	return r
}

// randomTakeAllRequest returns a request that TakeAll accepts.
func (w *storePair) randomTakeAllRequest() penstock.Request {
	l := w.limits[w.random.IntN(len(w.limits))]
	most := l.Count
	if l.Algorithm <= penstock.LeakyBucket && l.Burst > 0 {
		most = l.Burst
	}
	r := penstock.Request{Key: w.keys[w.random.IntN(len(w.keys))], Limit: l, Cost: 1 + w.magnitude(max(most, 1))}
	switch w.random.IntN(8) {
	case 0:
		r.MaxDelay = time.Duration(w.magnitude(int64(2 * w.randomPeriod())))
	case 1:
		r.MaxDelay = math.MaxInt64
	case 2:
		r.MaxDelay = 0
		r.Cost = max(most/2, 1)
	}
	if w.random.IntN(3) == 0 {
		r.KeepFree = []int64{1, most / 2, max(most-r.Cost, 0), w.magnitude(max(most, 1)), math.MaxInt64}[w.random.IntN(5)]
	}
	return r
}

// take sends a request to both stores.
func (w *storePair) take(r penstock.Request) (rs []penstock.Request, got, want []penstock.Decision, gotErr, wantErr error) {
	got, want = make([]penstock.Decision, 1), make([]penstock.Decision, 1)
	got[0], gotErr = w.redis.Take(context.Background(), r)
	want[0], wantErr = w.memory.Take(context.Background(), r)
	return []penstock.Request{r}, got, want, gotErr, wantErr
}

// compareBatch sends the same request for several keys, some of them repeated, as one
// batch.
func (w *storePair) compareBatch() {
	one := w.randomRequest()
	isPermit := one.Limit.Algorithm == penstock.Concurrent && one.ID != ""
	if !isPermit {
		one.ID = ""
	}
	rs := make([]penstock.Request, 1+w.random.IntN(8))
	for i := range rs {
		rs[i] = one
		rs[i].Key = w.keys[w.random.IntN(len(w.keys))]
		if isPermit {
			rs[i].ID = w.randomID()
		}
	}
	w.compareEachOfBatch("request", rs)
}

// compareOnceBatch sends takes under IDs for several keys as one batch. Each has its own cost, and
// some have an ID that is known already, or that another of the batch has.
func (w *storePair) compareOnceBatch() {
	one := w.randomRequest()
	if one.Limit.Algorithm == penstock.Concurrent {
		return // its permits are the records of its IDs
	}
	one.Cost, one.Hold = max(one.Cost, 1), w.randomHold()
	rs := make([]penstock.Request, 1+w.random.IntN(8))
	for i := range rs {
		rs[i] = one
		rs[i].Key, rs[i].ID = w.keys[w.random.IntN(len(w.keys))], []string{"x", "y", "z"}[w.random.IntN(3)]
		if w.random.IntN(2) == 0 {
			rs[i].Cost = 1 + w.magnitude(one.Cost)
		}
	}
	w.compareEachOfBatch("take", rs)
}

// compareSettleBatch settles what was granted under IDs and one limit as one batch, some of it
// more than once.
func (w *storePair) compareSettleBatch() {
	if len(w.grants) == 0 {
		return
	}
	limit := w.grants[w.random.IntN(len(w.grants))].Limit
	var rs []penstock.Request
	for range 1 + w.random.IntN(8) {
		if g := w.grants[w.random.IntN(len(w.grants))]; g.Limit == limit {
			amount := []int64{0, w.magnitude(g.Cost), g.Cost, g.Cost + w.magnitude(g.Cost), math.MaxInt64}[w.random.IntN(5)]
			rs = append(rs, penstock.Request{Key: g.Key, Limit: w.changed(limit), Cost: amount, ID: g.ID, Settle: true})
		}
	}
	w.compareEachOfBatch("settle", rs)
}

// compareEachOfBatch sends requests as one batch, and to memory one after the other.
func (w *storePair) compareEachOfBatch(name string, rs []penstock.Request) {
	callers := w.randomCallers(len(rs))
	got, errs := w.redis.TakeBatched(rs, callers...)
	for i := range rs {
		fmt.Fprintf(&w.trace, "%s %d of %d in a batch:\n", name, i+1, len(rs))
		if w.hasLeft(callers[i], errs[i]) {
			continue
		}
		want, err := w.memory.Take(context.Background(), rs[i])
		w.compare(rs[i:i+1], got[i:i+1], []penstock.Decision{want}, errs[i], err)
	}
}

func (w *storePair) compareTakeEach() {
	rs := make([]penstock.Request, 1+w.random.IntN(8))
	for i := range rs {
		rs[i] = w.randomRequest()
	}
	got, want := make([]penstock.Decision, len(rs)), make([]penstock.Decision, len(rs))
	gotErr := penstock.TakeEach(context.Background(), w.redis, rs, got)
	wantErr := penstock.TakeEach(context.Background(), w.memory, rs, want)
	w.compare(rs, got, want, gotErr, wantErr)
}

func (w *storePair) compareTakeAll() {
	rs := make([]penstock.Request, 1+w.random.IntN(4))
	for i := range rs {
		rs[i] = w.mayOverdraw(w.randomTakeAllRequest())
	}
	w.addID(rs)
	w.together = true
	defer func() { w.together = false }()
	fmt.Fprintf(&w.trace, "TakeAll:\n")
	got, want := make([]penstock.Decision, len(rs)), make([]penstock.Decision, len(rs))
	gotErr := penstock.TakeAll(context.Background(), w.redis, rs, got)
	wantErr := penstock.TakeAll(context.Background(), w.memory, rs, want)
	w.compare(rs, got, want, gotErr, wantErr)
}

// compareSettle settles what was granted under an ID, to one key or to two.
func (w *storePair) compareSettle() {
	if len(w.grants) == 0 {
		return
	}
	var rs []penstock.Request
	for range 1 + w.random.IntN(2) {
		g := w.grants[w.random.IntN(len(w.grants))]
		if len(rs) == 0 || g.ID == rs[0].ID && g.Key != rs[0].Key {
			amount := []int64{0, w.magnitude(g.Cost), g.Cost, g.Cost + w.magnitude(g.Cost), math.MaxInt64}[w.random.IntN(5)]
			rs = append(rs, penstock.Request{Key: g.Key, Limit: w.changed(g.Limit), Cost: amount, ID: g.ID, Settle: true})
		}
	}
	fmt.Fprintf(&w.trace, "settle:\n")
	if len(rs) == 1 {
		w.compare(w.take(rs[0]))
		return
	}
	got, want := make([]penstock.Decision, len(rs)), make([]penstock.Decision, len(rs))
	gotErr := penstock.TakeAll(context.Background(), w.redis, rs, got)
	wantErr := penstock.TakeAll(context.Background(), w.memory, rs, want)
	w.compare(rs, got, want, gotErr, wantErr)
}

// changed returns a limit as changeLimit has left it.
func (w *storePair) changed(l penstock.Limit) penstock.Limit {
	for _, now := range w.limits {
		if now.Identity() == l.Identity() {
			return now
		}
	}
	return l
}

// randomCallers returns the contexts of the calls of a batch. Some callers leave before it is sent.
func (w *storePair) randomCallers(n int) []context.Context {
	callers := make([]context.Context, n)
	for i := range callers {
		callers[i] = context.Background()
		if w.random.IntN(6) == 0 {
			ctx, cancel := context.WithCancel(callers[i])
			cancel()
			callers[i] = ctx
		}
	}
	return callers
}

// hasLeft reports whether a caller has left, and so nothing was charged: the later decisions tell.
func (w *storePair) hasLeft(caller context.Context, err error) bool {
	w.Helper()
	if caller.Err() == nil {
		return false
	}
	fmt.Fprintf(&w.trace, "  canceled\n")
	if !errors.Is(err, context.Canceled) && !errors.Is(err, penstock.ErrBadCost) {
		w.Errorf("a caller that has left got %v; see the end of the trace", err)
	}
	return true
}

// compareTakeAllBatch sends TakeAlls of the same steps for several keys as one batch. Some have
// keys in common, and some other limits.
func (w *storePair) compareTakeAllBatch() {
	w.together = true
	defer func() { w.together = false }()
	one := w.randomGroup(func() penstock.Request { return w.mayOverdraw(w.randomTakeAllRequest()) })
	w.compareGroupBatch("TakeAll", one, w.redis.TakeAllBatched, penstock.TakeAll)
}

// compareTakeEachBatch does the same with independent requests.
func (w *storePair) compareTakeEachBatch() {
	one := w.randomGroup(func() penstock.Request {
		r := w.randomRequest()
		r.ID, r.Hold, r.Cost = "", 0, max(r.Cost, 0)
		return r
	})
	w.compareGroupBatch("TakeEach", one, w.redis.TakeEachBatched, penstock.TakeEach)
}

type (
	takeBatched = func([][]penstock.Request, [][]penstock.Decision, ...context.Context) (errs []error, grouped bool)
	takeSeveral = func(context.Context, penstock.Store, []penstock.Request, []penstock.Decision) error
)

func (w *storePair) compareGroupBatch(name string, one []penstock.Request, batched takeBatched, take takeSeveral) {
	if one == nil {
		return
	}
	all, other := make([][]penstock.Request, 1+w.random.IntN(8)), w.underOtherLimits(one)
	for i := range all {
		if all[i] = slices.Clone(one); w.random.IntN(3) == 0 {
			all[i] = slices.Clone(other)
		}
		order := w.random.Perm(len(w.keys))
		for j := range one {
			all[i][j].Key = w.keys[order[j%len(order)]]
		}
	}
	got, want := decisionsFor(all), decisionsFor(all)
	callers := w.randomCallers(len(all))
	errs, grouped := batched(all, got, callers...)
	if !grouped {
		return // two limits have the same name, so that they share a key's state
	}
	for i, rs := range all {
		fmt.Fprintf(&w.trace, "%s %d of %d in a batch:\n", name, i+1, len(all))
		if w.hasLeft(callers[i], errs[i]) {
			continue
		}
		wantErr := take(context.Background(), w.memory, rs, want[i])
		w.compare(rs, got[i], want[i], errs[i], wantErr)
	}
}

// underOtherLimits returns the requests under new limits of the same steps, and with names of their
// own: a batch decides the calls under some limits before those under others.
func (w *storePair) underOtherLimits(rs []penstock.Request) []penstock.Request {
	rs = slices.Clone(rs)
	for i := range rs {
		l := w.randomLimit(rs[i].Limit.Algorithm)
		for (l.Align == penstock.AlignFirst) != (rs[i].Limit.Align == penstock.AlignFirst) {
			l = w.randomLimit(l.Algorithm)
		}
		l.Name = fmt.Sprintf("other%d", i)
		rs[i].Limit = l
	}
	return rs
}

// randomGroup returns requests of a call without IDs, at most as many as there are keys,
// or nil if one would take permits, which need an ID.
func (w *storePair) randomGroup(random func() penstock.Request) []penstock.Request {
	rs := make([]penstock.Request, 2+w.random.IntN(len(w.keys)-1))
	for i := range rs {
		if rs[i] = random(); rs[i].Limit.Algorithm == penstock.Concurrent {
			return nil
		}
	}
	return rs
}

// addID puts one ID on all requests of a TakeAll, if it may have one. Permits need one.
func (w *storePair) addID(rs []penstock.Request) {
	id, seen := []string{"", "x", "y"}[w.random.IntN(3)], map[any]bool{}
	for _, r := range rs {
		state := [2]any{r.Key, r.Limit.Identity()}
		if seen[state] {
			id = ""
		}
		seen[state] = true
	}
	alone := id != "" && w.random.IntN(2) == 0 // the ID is only on permits
	for i := range rs {
		permits := rs[i].Limit.Algorithm == penstock.Concurrent
		if rs[i].ID = id; alone && !permits {
			rs[i].ID = ""
		}
		rs[i].NewID = alone && permits
		if !permits {
			if rs[i].ID != "" {
				rs[i].Hold = w.randomHold()
			}
			continue
		}
		if rs[i].Cost = min(rs[i].Cost, 100); id == "" {
			rs[i].Cost = 0
		}
	}
}

// compare compares the decisions field by field.
func (w *storePair) compare(rs []penstock.Request, got, want []penstock.Decision, gotErr, wantErr error) {
	w.Helper()
	for i, r := range rs {
		fmt.Fprintf(&w.trace, "  %s %d at most=%v overdraw=%v within %v keep=%d id=%q for %v under %s\n", r.Key, r.Cost, r.AtMost, r.Overdraw, r.MaxDelay, r.KeepFree, r.ID, r.Hold, r.Limit)
		fmt.Fprintf(&w.trace, "     redis %+v %v\n    memory %+v %v\n", got[i], gotErr, want[i], wantErr)
	}
	if (gotErr == nil) != (wantErr == nil) || gotErr == nil && !slices.Equal(got, want) {
		w.Errorf("the stores disagree; see the end of the trace")
	}
	switch {
	case gotErr == nil:
		w.compared += len(rs)
		w.recordExpiries(rs, want)
	case errors.Is(gotErr, penstock.ErrUnknownID):
		w.forgetExpiries(rs)
	}
}

// forgetExpiries lets states expire now, as far as the test knows: like a denial, an
// unknown ID moves a state from the future to the present, and no decision says so.
func (w *storePair) forgetExpiries(rs []penstock.Request) {
	for _, r := range rs {
		w.ends[r.Key][r.Limit.Identity()] = w.now
	}
}

// recordExpiries records when states and records expire, and the durations in the
// decisions.
func (w *storePair) recordExpiries(rs []penstock.Request, ds []penstock.Decision) {
	w.hints = w.hints[:0]
	for i, d := range ds {
		ends := w.ends[rs[i].Key]
		identity := rs[i].Limit.Identity()
		if d.ResetAfter > 0 {
			ends[identity] = w.now.Add(d.ResetAfter)
		} else if ends[identity].After(w.now) {
			delete(ends, identity) // refunded; an expired state stays recorded
		}
		if rs[i].ID != "" && !rs[i].Settle && (d.Granted > 0 || rs[i].Overdraw) { // a charge of nothing is recorded too
			if rs[i].Limit.Algorithm != penstock.Concurrent {
				w.grants = append(w.grants, rs[i])
			}
			record, end := [2]any{identity, rs[i].ID}, w.now.Add(w.lifetime(rs, i))
			if before, ok := ends[record]; !ok || end.Before(before) {
				ends[record] = end // a repeat does not extend it, but it may be new after a refund and a step back
			}
		}
		for _, hint := range []time.Duration{d.RetryAfter, d.ResetAfter, d.Delay} {
			if hint > 0 && hint < 800*24*time.Hour {
				w.hints = append(w.hints, hint)
			}
		}
	}
}

// lifetime returns how long a grant is remembered: in a TakeAll as long as the longest.
func (w *storePair) lifetime(rs []penstock.Request, i int) time.Duration {
	longest := lifetimeAlone(rs[i])
	for _, r := range rs {
		if w.together {
			longest = max(longest, lifetimeAlone(r))
		}
	}
	return longest
}

func lifetimeAlone(r penstock.Request) time.Duration {
	return max(min(r.Limit.Normal().Period, 24*time.Hour), r.Hold)
}

func (w *storePair) randomStepSize() time.Duration {
	switch n := w.random.IntN(8); {
	case n < 4 && len(w.hints) > 0:
		hint := w.hints[w.random.IntN(len(w.hints))]
		return hint - time.Duration(w.random.IntN(2))*time.Millisecond
	case n < 6: // where what the keys hold may change its form
		half := w.limits[w.random.IntN(len(w.limits))].Period / 2
		edge := time.Duration(1+w.random.IntN(4))*half + time.Duration(w.random.IntN(3)-1)*time.Millisecond
		return max(edge, 0).Truncate(time.Millisecond)
	}
	return time.Duration(w.magnitude(max(int64(w.randomPeriod()/time.Millisecond), 1))) * time.Millisecond
}

// stepBack moves the clock back. Keys with an expired state or record are replaced.
func (w *storePair) stepBack() {
	for i, key := range w.keys {
		for _, end := range w.ends[key] {
			if !end.After(w.now) {
				w.newKey(i)
				break
			}
		}
	}
	w.setClock(w.now.Add(-w.randomStepSize()))
}
