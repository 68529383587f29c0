package overload

import (
	"sync"

	"github.com/penstock-io/penstock/internal/breaker"
)

// A StreamCall is an admitted call of a [BreakerGroup] that may go on for long
// after the service has answered, such as a stream. It is safe for concurrent use,
// and each of its methods has an effect once.
//
// The call is too slow if the service has not answered for BreakerOptions.Slow
// since Await, and failed at that moment. A service that answers has succeeded, at
// that moment, and nothing is too slow from then on. If the call fails later, Done
// takes that success back, so a call counts once.
type StreamCall struct {
	mu    sync.Mutex
	entry *groupBreaker // nil if the call has no breaker
	call  Call
	phase streamPhase
}

type streamPhase uint8

const (
	streamOpen     streamPhase = iota // the service need not answer yet
	streamAwaited                     // it has to answer
	streamAnswered                    // it has answered
	streamFailed                      // it has failed, and that was counted
	streamDone
)

// AllowStream admits a stream for a key, or returns an [OpenError]. Its caller must
// report how the stream ended with [StreamCall.Done], also if it was never used.
func (g *BreakerGroup) AllowStream(key string) (*StreamCall, error) {
	c, err := g.Allow(key)
	if err != nil {
		return nil, err
	}
	s := &StreamCall{entry: c.entry, call: c.call}
	if s.entry != nil && !s.call.isProbe() && !s.call.breaker.pending.Remove(s.call.mark) {
		s.phase = streamFailed // the goroutine was suspended for so long that the call was overdue
	}
	return s, nil
}

// Await reports that the service has what it needs to answer, so that the time in
// which it has to begins now.
func (s *StreamCall) Await() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entry == nil || s.phase != streamOpen {
		return
	}
	b := s.call.breaker
	s.phase, s.call.sent = streamAwaited, b.clock.Now()
	if !s.call.isProbe() {
		s.call.mark = b.pending.Add(s.call.generation, s.call.sent)
	}
}

// Answered reports that the service has begun to answer.
func (s *StreamCall) Answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entry == nil || s.phase > streamAwaited {
		return
	}
	next := streamAnswered
	if s.report(Success) != Success {
		next = streamFailed
	}
	s.phase = next
}

// Done reports how the stream ended.
func (s *StreamCall) Done(o Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entry == nil || s.phase == streamDone {
		return
	}
	switch {
	case s.phase <= streamAwaited:
		s.report(o)
	case s.phase == streamAnswered && o == Failure:
		b := s.call.breaker
		b.failAnswered(breaker.Ticket{Generation: s.call.generation}, b.clock.Now())
		defer b.noticeChange()
	}
	s.phase = streamDone
	s.entry.inFlight.Add(-1)
}

// report counts what the service has done by now, and returns what it counts as.
func (s *StreamCall) report(o Outcome) Outcome {
	c, b := s.call, s.call.breaker
	now, awaited := b.clock.Now(), s.phase == streamAwaited
	if awaited {
		o = b.afterTime(o, c.sent, now)
	}
	switch {
	case c.isProbe():
		c.endProbe(o, now)
	case awaited && !b.pending.Remove(c.mark):
		return Failure // it has been counted as overdue
	case b.mustReport(o):
		c.report(o, now)
	}
	return o
}
