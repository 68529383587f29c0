package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"pgregory.net/rapid"
)

// testAgreement makes random requests and compares every decision with the model's.
func testAgreement(t *testing.T, open Open, supported []penstock.Algorithm) {
	var anyAlgorithm []*rapid.Generator[penstock.Limit]
	for _, a := range supported {
		anyAlgorithm = append(anyAlgorithm, anyLimit(a))
		t.Run(a.String(), func(t *testing.T) { checkAgreement(t, open, anyLimit(a)) })
	}
	t.Run("all algorithms", func(t *testing.T) { checkAgreement(t, open, rapid.OneOf(anyAlgorithm...)) })
}

func checkAgreement(t *testing.T, open Open, limits *rapid.Generator[penstock.Limit]) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &comparison{clock: &Clock{}}
		s.setUp(rt, limits)
		s.store, s.model = open(t, s.clock), newModel(s.clock)
		rt.Repeat(map[string]func(*rapid.T){
			"take 1": s.take, "take 2": s.take, "take 3": s.take, "take 4": s.take,
			"settle": s.settle, "take all": s.takeAll, "take each": s.takeEach,
			"wait 1": s.wait, "wait 2": s.wait, "step back": s.stepBack,
			"change limit": s.changeLimit,
		})
	})
}

// A comparison sends the same requests to a store and to the model.
type comparison struct {
	store penstock.Store
	clock *Clock
	model *model

	limits     []penstock.Limit
	keys       [3]int   // how often each key was replaced
	last       []result // of the step before
	transcript strings.Builder
}

// setUp draws the start time and the limits. The transcript is logged apart from any
// error, because rapid searches for a shorter one that ends in the same error.
func (s *comparison) setUp(t *rapid.T, limits *rapid.Generator[penstock.Limit]) {
	t.Cleanup(func() { t.Logf("transcript:\n%s", s.transcript.String()) })
	s.setClock(t, anyTime().Draw(t, "start"))
	for i := range 3 {
		l := limits.Draw(t, "limit")
		if rapid.Bool().Draw(t, "named") {
			l.Name = fmt.Sprintf("name-%d", i)
		}
		s.limits = append(s.limits, l)
		s.log("limit %s: %s\n", label(i), l)
	}
}

func label(limit int) string { return string(rune('a' + limit)) }

func (s *comparison) log(format string, args ...any) { fmt.Fprintf(&s.transcript, format, args...) }

func (s *comparison) setClock(t *rapid.T, now time.Time) {
	s.check(t, s.clock.set(now))
}

// take sends any request for one key.
func (s *comparison) take(t *rapid.T) {
	c := s.anyCall(t)
	c.request.Cost = fitCost(c.request.Limit, anyCost(maxUnits(c.request.Limit)).Draw(t, "cost"))
	c.request.AtMost = c.request.Cost >= 0 && rapid.Bool().Draw(t, "at most")
	if c.request.Cost != penstock.Reset {
		c.request.ID = anyID(c.request.Limit).Draw(t, "id")
	}
	c.request.NewID = needsID(c.request.Limit) && rapid.IntRange(0, 3).Draw(t, "new ID at 3") == 3
	s.mayOverdraw(t, &c)
	if c.request.ID != "" {
		c.request.Hold = rapid.SampledFrom([]time.Duration{0, 0, time.Minute}).Draw(t, "hold")
	}
	s.compare(t, step{how: single, calls: []call{c}})
}

// settle settles what was taken from one key, or from several.
func (s *comparison) settle(t *rapid.T) {
	calls := make([]call, rapid.IntRange(1, 3).Draw(t, "calls"))
	id := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "id")
	for i := range calls {
		calls[i] = s.anyCall(t)
		r := &calls[i].request
		if needsID(r.Limit) {
			return // permits are not settled
		}
		r.Cost, r.ID, r.Settle, r.MaxDelay = rapid.Int64Range(0, 2*maxUnits(r.Limit)+2).Draw(t, "amount"), id, true, 0
	}
	switch {
	case len(calls) == 1:
		s.compare(t, step{how: single, calls: calls})
	case !sharesState(calls):
		s.compare(t, step{how: all, calls: calls})
	}
}

// anyID generates an ID, often none where none is needed.
func anyID(l penstock.Limit) *rapid.Generator[string] {
	if needsID(l) {
		return rapid.SampledFrom([]string{"v", "w", "x", "y"})
	}
	return rapid.SampledFrom([]string{"", "", "x", "y"})
}

// mayOverdraw turns some takes into charges, if the limit can owe.
func (s *comparison) mayOverdraw(t *rapid.T, c *call) {
	r := c.request
	r.AtMost, r.MaxDelay, r.Overdraw = false, 0, true
	if r.Validate() == nil && rapid.IntRange(0, 2).Draw(t, "charge at 2") == 2 {
		c.request = r
	}
}

// takeAll takes from several keys, all or nothing.
func (s *comparison) takeAll(t *rapid.T) {
	calls := make([]call, rapid.IntRange(1, 4).Draw(t, "calls"))
	for i := range calls {
		calls[i] = s.anyCall(t)
		calls[i].request.Cost = fitCost(calls[i].request.Limit, rapid.Int64Range(0, maxUnits(calls[i].request.Limit)/2+2).Draw(t, "cost"))
		s.mayOverdraw(t, &calls[i])
		if mixes(calls[:i], &calls[i]) {
			calls[i].request.Cost, calls[i].request.Overdraw = 0, false
		}
	}
	id := ""
	if !sharesState(calls) {
		id = rapid.SampledFrom([]string{"", "x", "z"}).Draw(t, "id")
	}
	alone := id != "" && rapid.Bool().Draw(t, "ID on permits alone")
	for i := range calls {
		r := &calls[i].request
		permits := needsID(r.Limit)
		if r.ID = id; alone && !permits {
			r.ID = ""
		}
		r.NewID = alone && permits
		if permits && id == "" {
			r.Cost = 0
		}
	}
	s.compare(t, step{how: all, calls: calls})
}

// sharesState reports whether two calls are for the same key and limit, so that they
// cannot have an ID.
func sharesState(calls []call) bool {
	seen := map[stateKey]bool{}
	for _, c := range calls {
		if seen[stateKeyOf(c.request)] {
			return true
		}
		seen[stateKeyOf(c.request)] = true
	}
	return false
}

// mixes reports whether a call charges a key that an earlier one takes from, or the
// other way round, which is an error in a TakeAll.
func mixes(earlier []call, c *call) bool {
	return slices.ContainsFunc(earlier, func(e call) bool {
		return e.request.Cost > 0 && e.request.Overdraw != c.request.Overdraw &&
			stateKeyOf(e.request) == stateKeyOf(c.request)
	})
}

// takeEach sends requests for several keys, each decided by itself.
func (s *comparison) takeEach(t *rapid.T) {
	calls := make([]call, rapid.IntRange(1, 4).Draw(t, "calls"))
	for i := range calls {
		calls[i] = s.anyCall(t)
		calls[i].request.Cost = fitCost(calls[i].request.Limit, anyCost(maxUnits(calls[i].request.Limit)).Draw(t, "cost"))
		if needsID(calls[i].request.Limit) && calls[i].request.Cost != penstock.Reset {
			calls[i].request.ID = anyID(calls[i].request.Limit).Draw(t, "id")
		}
		s.mayOverdraw(t, &calls[i])
	}
	s.compare(t, step{how: each, calls: calls})
}

// anyCall draws a call without its cost.
func (s *comparison) anyCall(t *rapid.T) call {
	i := rapid.IntRange(0, len(s.limits)-1).Draw(t, "limit")
	key := rapid.IntRange(0, len(s.keys)-1).Draw(t, "key")
	return call{label: label(i), request: penstock.Request{
		Key:      s.key(key),
		Limit:    s.limits[i],
		MaxDelay: anyDelay(s.limits[i].Normal().Period).Draw(t, "max delay"),
		KeepFree: anyKeepFree(maxUnits(s.limits[i])).Draw(t, "keep free"),
	}}
}

func (s *comparison) key(i int) string { return fmt.Sprintf("key-%d.%d", i, s.keys[i]) }

// compare runs a step on the store and on the model, and compares the results.
func (s *comparison) compare(t *rapid.T, step step) {
	step.at, step.times = s.clock.Now(), 1
	want, err := runStep(s.model, s.clock, &step)
	s.check(t, err)
	s.log("%s", step.text(want))
	got, err := runStep(s.store, s.clock, &step)
	s.check(t, err)
	if !slices.Equal(got, want) {
		s.log("# but the store returns\n%s", step.text(got))
		s.check(t, errDisagreement)
	}
	s.last = want
}

var errDisagreement = errors.New("the store disagrees with the model")

func (s *comparison) check(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// wait moves the clock forward, often to a time that the last result named, or to one
// tick before it.
func (s *comparison) wait(t *rapid.T) {
	period := s.anyPeriod(t)
	waits := []time.Duration{
		tick,
		millis(0, period).Draw(t, "within a period"),
		millis(0, 3*period).Draw(t, "more periods"),
	}
	for _, a := range s.last {
		for _, field := range durationFields(&a.last) {
			if d := *field.value; d > 0 && d < 1000*day {
				waits = append(waits, d, d-tick)
			}
		}
	}
	s.setClock(t, s.clock.Now().Add(rapid.SampledFrom(waits).Draw(t, "wait")))
}

// anyPeriod returns the period of one of the limits, in ticks.
func (s *comparison) anyPeriod(t *rapid.T) int64 {
	return int64(rapid.SampledFrom(s.limits).Draw(t, "limit").Normal().Period / tick)
}

// stepBack moves the clock back. Whether a store still has the state of a key that
// expired before the step is its own choice, so such keys are not used again.
func (s *comparison) stepBack(t *rapid.T) {
	now := s.clock.Now()
	for i := range s.keys {
		if s.model.ledger.expired(s.key(i), now.UnixNano()) {
			s.keys[i]++
		}
	}
	s.setClock(t, now.Add(-rapid.OneOf(millis(1, 20), millis(1, 2*s.anyPeriod(t))).Draw(t, "step")))
	s.log("back to %s\n", s.clock.Now().Format(time.RFC3339Nano))
}

// changeLimit raises or lowers a limit.
func (s *comparison) changeLimit(t *rapid.T) {
	i := rapid.IntRange(0, len(s.limits)-1).Draw(t, "limit")
	l := s.limits[i]
	l.Count = anyCount().Draw(t, "count")
	l.Debt = anyDebt().Draw(t, "debt")
	if l.IsBucket() {
		l.Burst = rapid.Int64Range(0, 20).Draw(t, "burst")
		l.Period = rapid.OneOf(rapid.Just(l.Period), anyPeriod()).Draw(t, "period")
	}
	if l.Validate() != nil {
		t.Skip("not a valid limit")
	}
	s.limits[i] = l
	s.log("limit %s: %s\n", label(i), l)
}
