package penstock

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A switchboard is a breaker on a clock that the test holds.
type switchboard struct {
	*testing.T
	breaker
	now int64
}

const (
	inARow    = 5
	retryTime = 500 * time.Millisecond
)

func newSwitchboard(t *testing.T) *switchboard { return &switchboard{T: t, now: 1} }

func (s *switchboard) wait(d time.Duration) { s.now += int64(d) }

// send sends a call, which must be admitted.
func (s *switchboard) send() ticket {
	s.Helper()
	t, ok := s.admit(s.now)
	if !ok {
		s.Fatal("a closed breaker did not admit a call")
	}
	return t
}

// answer lets calls be answered, or not.
func (s *switchboard) answer(t ticket, ok bool) (opened bool) {
	if !ok {
		return s.fail(t, s.now, inARow, retryTime)
	}
	if s.inTrouble() {
		s.succeed(t, s.now)
	}
	return false
}

// calls makes calls one after the other, and stops when the breaker opens.
func (s *switchboard) calls(outcomes ...bool) {
	s.Helper()
	for _, ok := range outcomes {
		s.answer(s.send(), ok)
	}
}

func (s *switchboard) isNow(open bool, when string) {
	s.Helper()
	if s.isOpen() != open {
		s.Errorf("%s: open is %v, want %v", when, s.isOpen(), open)
	}
}

func TestBreakerOpensOnFailuresInARow(t *testing.T) {
	s := newSwitchboard(t)
	s.calls(false, false, false, false, true, false, false, false, false)
	s.isNow(false, "twice four in a row")
	s.calls(false)
	s.isNow(true, "five in a row")
	if _, ok := s.admit(s.now); ok {
		t.Error("an open breaker admitted a call")
	}
}

// Seven of twenty in a row fail never more than twice, but more than half of them.
func TestBreakerOpensOnThePartThatFails(t *testing.T) {
	for _, c := range []struct {
		part []bool // repeated
		open bool
	}{
		{[]bool{false, false, true}, true},
		{[]bool{false, true}, true},
		{[]bool{false, true, true}, false},
		{[]bool{false, true, true, false, true}, false},
	} {
		s := newSwitchboard(t)
		for range 30 {
			for _, ok := range c.part {
				if s.isOpen() {
					break
				}
				s.wait(5 * time.Millisecond)
				s.calls(ok)
			}
		}
		s.isNow(c.open, "a part of the calls fails")
	}
}

func TestBreakerNeedsEnoughCallsToJudge(t *testing.T) {
	s := newSwitchboard(t)
	for range 9 { // 18 calls
		s.calls(false, true)
	}
	s.isNow(false, "half of 18 calls failed")
	s.calls(false, true, false)
	s.isNow(true, "half of 20 calls failed")
}

// Half of the calls fail, but so few that a second never sees twenty.
func TestBreakerForgetsAfterASecond(t *testing.T) {
	s := newSwitchboard(t)
	for range 200 {
		s.wait(60 * time.Millisecond)
		s.calls(false)
		s.wait(60 * time.Millisecond)
		s.calls(true)
	}
	s.isNow(false, "half of eight calls a second failed")
}

// Calls count when they are sent: those under way are not taken for failures.
func TestCallsUnderWayAreNotFailures(t *testing.T) {
	s := newSwitchboard(t)
	s.calls(false) // so that there are books
	var under []ticket
	for range 60 {
		under = append(under, s.send())
	}
	for _, ok := range []bool{false, false, true, false, false, true, false, false, true} {
		s.answer(under[0], ok)
		under = under[1:]
	}
	s.isNow(false, "seven of 61 calls failed, and most are under way")
}

// Calls that were under way when the first of them failed count as well, those
// that succeed and those that do not.
func TestCallsFromBeforeTheFirstFailureCount(t *testing.T) {
	for _, c := range []struct {
		part []bool
		open bool
	}{
		{[]bool{false, false, true}, true},
		{[]bool{false, true, true}, false},
	} {
		s := newSwitchboard(t)
		var under []ticket
		for range 60 {
			under = append(under, s.send())
		}
		for i, u := range under {
			s.answer(u, c.part[i%len(c.part)])
		}
		s.isNow(c.open, "a part of 60 calls under way failed")
	}
}

// What was sent before the breaker opened says nothing about the store after it
// is back.
func TestLateFailuresDoNotOpenAgain(t *testing.T) {
	s := newSwitchboard(t)
	var late []ticket
	for range 20 {
		late = append(late, s.send())
	}
	s.calls(false, false, false, false, false)
	s.wait(time.Second)
	if !s.probe(s.now) {
		t.Fatal("not tried after a second")
	}
	s.probed(true, s.now, retryTime)
	s.isNow(false, "after an answer")
	for _, l := range late {
		if s.answer(l, false) {
			t.Fatal("opened again by calls from before")
		}
	}
	s.calls(false, false, false, false)
	for _, l := range late {
		s.answer(l, true) // an answer from before does not end the row, either
	}
	s.calls(false)
	s.isNow(true, "five in a row after it was back")
}

func TestOneProbeAtATime(t *testing.T) {
	s := newSwitchboard(t)
	s.calls(false, false, false, false, false)
	if s.probe(s.now) {
		t.Error("tried at once")
	}
	if wait := s.retryIn(s.now); wait < retryTime*4/5 || wait > retryTime*6/5 {
		t.Errorf("tried after %v, want about %v", wait, retryTime)
	}
	for range 3 {
		s.wait(s.retryIn(s.now))
		var probes atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if s.probe(s.now) {
					probes.Add(1)
				}
			})
		}
		wg.Wait()
		if probes.Load() != 1 {
			t.Fatalf("%d at once tried the store, want one", probes.Load())
		}
		s.wait(time.Hour)
		if s.probe(s.now) {
			t.Error("tried while it is being tried")
		}
		s.probed(false, s.now, retryTime)
		s.isNow(true, "after a probe that failed")
	}
}

func TestSpread(t *testing.T) {
	least, most := int64(1<<62), int64(0)
	for now := range int64(10_000) {
		d := spread(now*1_000_003, retryTime)
		least, most = min(least, d), max(most, d)
	}
	if least < int64(retryTime)*4/5 || most > int64(retryTime)*6/5 {
		t.Errorf("from %v to %v, want at most a fifth around %v", time.Duration(least), time.Duration(most), retryTime)
	}
	if most-least < int64(retryTime)*3/10 {
		t.Errorf("from %v to %v: that spreads hardly anything", time.Duration(least), time.Duration(most))
	}
}

// However calls come and go, the breaker never opens on fewer failures than it
// should, and never lets five in a row pass.
func TestBreakerOpensWhenItShould(t *testing.T) {
	opened := 0
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 2))
		s := newSwitchboard(t)
		bad := rng.Float64()
		var under []ticket
		var failures []int64 // when
		row := 0
		for range 400 {
			s.wait(time.Duration(rng.Int64N(int64(40 * time.Millisecond))))
			if len(under) == 0 || rng.IntN(2) == 0 {
				under = append(under, s.send())
				continue
			}
			i := rng.IntN(len(under))
			ok := rng.Float64() > bad
			if row++; ok {
				row = 0
			} else {
				failures = append(failures, s.now)
			}
			open := s.answer(under[i], ok)
			under = append(under[:i], under[i+1:]...)
			recent := 0
			for _, at := range failures {
				if at > s.now-failureWithin {
					recent++
				}
			}
			if open && row < inARow && recent < failureLeast/failurePart {
				t.Fatalf("seed %d: opened after %d failures in a row and %d in a second", seed, row, recent)
			}
			if !open && row >= inARow {
				t.Fatalf("seed %d: not opened after %d failures in a row", seed, row)
			}
			if open {
				opened++
				break
			}
		}
	}
	if opened < 50 || opened > 450 {
		t.Errorf("opened in %d of 500 runs: too few or too many to have tested anything", opened)
	}
}
