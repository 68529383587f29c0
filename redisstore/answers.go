package redisstore

import (
	"sync/atomic"
	"time"
)

// An answerLog knows when Redis answered last, so that a call can tell whether its own answer comes nearer. Redis answers
// the calls of a connection in their order, and reads its connections in turns: an answer says so to a call that was
// sent later, or earlier by no more than the answered call has waited. An answer to a much later call says nothing, because
// it may have come on another connection, while that of the call is lost. Nor does one of another node.
type answerLog struct {
	start time.Time
	epoch time.Duration
	last  atomic.Int64 // when any call was answered, in nanoseconds since start; or 0
	nodes [maxNodes]atomic.Pointer[nodeAnswers]
}

// nodeAnswers are when calls of a node were answered last, in nanoseconds since the start of the log, by the epoch
// in which they were sent. An epoch has the place of one that ended so long ago that no call of it is in flight.
type nodeAnswers struct {
	epochs [logEpochs]atomic.Int64
	last   atomic.Int64 // of any call
}

const (
	maxNodes         = 64  // that are told apart; a node of a higher number counts as another's
	epochsPerTimeout = 8   // how exactly the log knows when a call was sent
	logEpochs        = 256 // more than maxTimeouts have
)

func newAnswerLog(timeout time.Duration) *answerLog {
	return &answerLog{start: time.Now(), epoch: max(timeout/epochsPerTimeout, 1)}
}

// note notes that a node has just answered a call. It returns when, and for how long the node had answered nothing while the call
// was in flight.
func (l *answerLog) note(node int, sent time.Time) (at time.Time, silent time.Duration) {
	at = time.Now()
	now := max(int64(at.Sub(l.start)), 1)
	l.last.Store(now)
	answers := l.node(node)
	answers.epochs[l.epochOf(sent)%logEpochs].Store(now)
	last := max(answers.last.Swap(now), int64(sent.Sub(l.start)))
	return at, time.Duration(now - last)
}

// node returns the answers of a node.
func (l *answerLog) node(number int) *nodeAnswers {
	at := &l.nodes[number%maxNodes]
	if at.Load() == nil {
		at.CompareAndSwap(nil, new(nodeAnswers))
	}
	return at.Load()
}

func (l *answerLog) epochOf(t time.Time) int64 { return int64(max(t.Sub(l.start), 0) / l.epoch) }

// latest returns when Redis answered any call last, or zero.
func (l *answerLog) latest() time.Time { return l.timeOf(l.last.Load()) }

// latestOf returns when a node answered any call last, or zero.
func (l *answerLog) latestOf(node int) time.Time {
	answers := l.nodes[node].Load()
	if answers == nil {
		return time.Time{}
	}
	return l.timeOf(answers.last.Load())
}

// near returns when one of these nodes last gave an answer which says to a call, by when that was sent, that its own comes nearer;
// or zero. The nodes are a set of bits.
func (l *answerLog) near(sent time.Time, nodes uint64) time.Time {
	newest, since := l.epochOf(time.Now()), int64(sent.Sub(l.start))
	latest := int64(0)
	for i := range l.nodes {
		answers := l.nodes[i].Load()
		if nodes&(1<<i) == 0 || answers == nil {
			continue
		}
		for epoch := max(newest-logEpochs+1, 0); epoch <= newest; epoch++ {
			began := epoch * int64(l.epoch)
			if at := answers.epochs[epoch%logEpochs].Load(); began-since <= at-began {
				latest = max(latest, at)
			}
		}
	}
	return l.timeOf(latest)
}

func (l *answerLog) timeOf(nanoseconds int64) (t time.Time) {
	if nanoseconds == 0 {
		return t
	}
	return l.start.Add(time.Duration(nanoseconds))
}
