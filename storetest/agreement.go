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

// testAgreement makes up stories and compares every decision with the model's.
func testAgreement(t *testing.T, open Open) {
	var anyAlgorithm []*rapid.Generator[penstock.Limit]
	for _, a := range algorithms {
		anyAlgorithm = append(anyAlgorithm, anyLimit(a))
		t.Run(a.String(), func(t *testing.T) { checkAgreement(t, open, anyLimit(a)) })
	}
	t.Run("all six together", func(t *testing.T) { checkAgreement(t, open, rapid.OneOf(anyAlgorithm...)) })
}

func checkAgreement(t *testing.T, open Open, limits *rapid.Generator[penstock.Limit]) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &story{clock: &Clock{}}
		s.begin(rt, limits)
		s.store, s.model = open(t, s.clock), newModel(s.clock)
		rt.Repeat(map[string]func(*rapid.T){
			"take": s.take, "take more": s.take, "take again": s.take, "take on": s.take,
			"together": s.together, "apart": s.apart,
			"wait": s.wait, "wait more": s.wait, "step back": s.stepBack,
			"change": s.change,
		})
	})
}

// A story is told to a store and to the model at once.
type story struct {
	store penstock.Store
	clock *Clock
	model *model

	limits []penstock.Limit
	keys   [3]int   // how often each key was replaced
	last   []answer // to the step before
	script strings.Builder
}

// begin makes up when the story begins and which limits it is about. The story
// is logged apart from any error, because rapid looks for a shorter one that
// ends in the same error.
func (s *story) begin(t *rapid.T, limits *rapid.Generator[penstock.Limit]) {
	t.Cleanup(func() { t.Logf("the story was\n%s", s.script.String()) })
	s.setClock(t, anyMoment().Draw(t, "beginning"))
	for i := range 3 {
		l := limits.Draw(t, "limit")
		if rapid.Bool().Draw(t, "named") {
			l.Name = fmt.Sprintf("name-%d", i)
		}
		s.limits = append(s.limits, l)
		s.note("limit %s: %s\n", label(i), l)
	}
}

func label(limit int) string { return string(rune('a' + limit)) }

func (s *story) note(format string, args ...any) { fmt.Fprintf(&s.script, format, args...) }

func (s *story) setClock(t *rapid.T, now time.Time) {
	s.check(t, s.clock.set(now))
}

// take asks anything of one key.
func (s *story) take(t *rapid.T) {
	c := s.anyCall(t)
	c.request.Cost = anyCost(most(c.request.Limit)).Draw(t, "cost")
	c.request.AtMost = c.request.Cost >= 0 && rapid.Bool().Draw(t, "at most")
	if c.request.Cost != penstock.Reset {
		c.request.ID = rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(t, "id")
	}
	s.tell(t, step{how: single, calls: []call{c}})
}

// together takes of several keys, all or nothing.
func (s *story) together(t *rapid.T) {
	calls := make([]call, rapid.IntRange(1, 4).Draw(t, "members"))
	for i := range calls {
		calls[i] = s.anyCall(t)
		calls[i].request.Cost = rapid.Int64Range(0, most(calls[i].request.Limit)/2+2).Draw(t, "cost")
	}
	s.tell(t, step{how: all, calls: calls})
}

// apart asks several keys, each by itself.
func (s *story) apart(t *rapid.T) {
	calls := make([]call, rapid.IntRange(1, 4).Draw(t, "members"))
	for i := range calls {
		calls[i] = s.anyCall(t)
		calls[i].request.Cost = anyCost(most(calls[i].request.Limit)).Draw(t, "cost")
	}
	s.tell(t, step{how: each, calls: calls})
}

// anyCall makes up all of a call but its cost.
func (s *story) anyCall(t *rapid.T) call {
	i := rapid.IntRange(0, len(s.limits)-1).Draw(t, "limit")
	key := rapid.IntRange(0, len(s.keys)-1).Draw(t, "key")
	return call{label: label(i), request: penstock.Request{
		Key:      s.key(key),
		Limit:    s.limits[i],
		MaxDelay: anyDelay(s.limits[i].Normal().Period).Draw(t, "max delay"),
	}}
}

func (s *story) key(i int) string { return fmt.Sprintf("key-%d.%d", i, s.keys[i]) }

// tell asks the store and the model the same, and compares.
func (s *story) tell(t *rapid.T, step step) {
	step.at, step.times = s.clock.Now(), 1
	want, err := perform(s.model, s.clock, &step)
	s.check(t, err)
	s.note("%s", step.text(want))
	got, err := perform(s.store, s.clock, &step)
	s.check(t, err)
	if !slices.Equal(got, want) {
		s.note("# but the store answers\n%s", step.text(got))
		s.check(t, errDisagreement)
	}
	s.last = want
}

var errDisagreement = errors.New("the store disagrees with the model")

func (s *story) check(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// wait moves the clock forward, often to a moment that the last answer named,
// or to just before it.
func (s *story) wait(t *rapid.T) {
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
func (s *story) anyPeriod(t *rapid.T) int64 {
	return int64(rapid.SampledFrom(s.limits).Draw(t, "limit").Normal().Period / tick)
}

// stepBack moves the clock back. What a store still knows of a key whose time
// was up before the step is its own choice, so such keys are not asked about
// again.
func (s *story) stepBack(t *rapid.T) {
	now := s.clock.Now()
	for i := range s.keys {
		if s.model.ledger.expired(s.key(i), now.UnixNano()) {
			s.keys[i]++
		}
	}
	s.setClock(t, now.Add(-rapid.OneOf(millis(1, 20), millis(1, 2*s.anyPeriod(t))).Draw(t, "step")))
	s.note("back to %s\n", s.clock.Now().Format(time.RFC3339Nano))
}

// change raises or lowers a limit.
func (s *story) change(t *rapid.T) {
	i := rapid.IntRange(0, len(s.limits)-1).Draw(t, "limit")
	l := s.limits[i]
	l.Count = anyCount().Draw(t, "count")
	if isBucket(l) {
		l.Burst = rapid.Int64Range(0, 20).Draw(t, "burst")
		l.Period = rapid.OneOf(rapid.Just(l.Period), anyPeriod()).Draw(t, "period")
	}
	if l.Validate() != nil {
		t.Skip("no limit")
	}
	s.limits[i] = l
	s.note("limit %s: %s\n", label(i), l)
}
