package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"time"

	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// A spread is which keys can share a script. A proxy before several servers sends a script to the server
// of its first key. Some refuse one with keys of several slots; others do not look at the other keys, and execute it on
// states that no other call sees. So the store tries it out.
type spread = int32

const (
	byKey     spread = iota // none: the proxy does not know hash tags, or this is not known yet
	bySlot                  // those of one slot, which have the same hash tag
	oneServer               // all
)

// sharded reports whether keys with different hash tags cannot share a script.
func (s *Store) sharded() bool { return s.spread.Load() != oneServer }

// placeOf returns what keys that can share a script have in common.
func (s *Store) placeOf(key string) string {
	if s.spread.Load() == byKey {
		return key
	}
	return hashTag(key)
}

var (
	markScript   = newScript("probe", script.Mark())
	unmarkScript = newScript("probe", script.Unmark())
)

// The time between two probes: a server can be added to those behind a proxy at any time. After one that was not
// answered, the next is soon, because keys share no script until then. After a reconnect it is sooner, but not at once
// after another: a server that is too slow for its callers loses connections, and must not get more to do.
const (
	probeInterval = time.Minute
	probeRetry    = time.Second
	minProbeGap   = 100 * time.Millisecond
)

// A probe tries out what a server does with scripts, on keys of its own.
type probe struct {
	do     func(calls []Call)
	prefix string
	mark   string
	form   scriptForm
}

// A scriptForm is how scripts are sent.
type scriptForm struct {
	text  bool // by EVAL with their texts
	older bool // without a command that a proxy may not know, see [Script.older]
}

// probe sets which keys can share a script. It returns a [RefusedError] if the server does not
// execute the store's scripts, and another error if that is not known yet.
func (s *Store) probe(do func(calls []Call)) error {
	p, known := probe{do: do, prefix: s.prefix + ":", mark: rand.Text()}, s.spread.Load()
	err := p.tryScript(s)
	if refused := refusalOf(err, s.client.Sharded()); refused != nil {
		return refused
	}
	if s.client.Sharded() {
		s.spread.Store(bySlot)
		return nil // it says itself where its keys are, and a slot may be down
	}
	found := byKey
	if err == nil {
		found, err = p.findSpread()
	}
	if err == nil && !s.spread.CompareAndSwap(known, found) {
		err = errForgotten
	}
	return err
}

// errForgotten means that the server may have been replaced during a probe.
var errForgotten = errors.New("connected again during the probe")

// firstProbe probes at the first connection. A server that cannot execute scripts yet, such as a replica, is
// probed again.
func (s *Store) firstProbe(ctx context.Context, do func(context.Context, []Call)) error {
	if s.client.Sharded() { // a node may not answer
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	err := s.probe(func(calls []Call) {
		began := time.Now()
		do(ctx, calls)
		s.limiterOf(0).window.noteRTT(time.Since(began))
	})
	switch {
	case err == nil:
		s.scheduleProbe(probeInterval)
	case isReply(err) && refusalOf(err, s.client.Sharded()) == nil:
		s.scheduleProbe(probeRetry)
		return nil
	}
	return err
}

// tryScript runs a script on one key, and sets the form of scripts that is accepted. Another form is tried only if the server
// refuses one, or lacks the script: one that loads its data may have done so by then, and would count as one that accepts
// nothing else.
func (p *probe) tryScript(s *Store) error {
	key := p.prefix + "probe{" + p.mark + "}"
	shared, bySHA1 := p.share(key)
	err := bySHA1
	for _, form := range []scriptForm{{text: true}, {text: true, older: true}} {
		if err != nil && (refusalOf(err, s.client.Sharded()) != nil || rejectionCode(err) == "NOSCRIPT") {
			p.form = form
			shared, err = p.share(key)
		}
	}
	switch {
	case err != nil:
		return err
	case !shared:
		return &RefusedError{
			Err:    errors.New("a script does not find what the one before has written"),
			Advice: "want scripts executed by one primary, without splitting of reads and writes",
		}
	}
	var unusual *scriptForm
	if refused := refusalOf(bySHA1, s.client.Sharded()) != nil; refused || p.form.older {
		unusual = &scriptForm{text: refused, older: p.form.older}
	}
	s.form.Store(unusual)
	return nil
}

// findSpread tries keys in all parts of the slots, and if they cannot share a script, keys of one slot.
func (p *probe) findSpread() (spread, error) {
	for _, try := range []struct {
		keys   []string
		spread spread
	}{{p.keysOfAllShards(), oneServer}, {p.keysOfOneSlot(), bySlot}} {
		shared, err := p.share(try.keys...)
		switch {
		case err != nil && refusalOf(err, false) == nil:
			return byKey, err
		case shared:
			return try.spread, nil
		}
	}
	return byKey, nil
}

// keysOfAllShards returns a key in each shard. Nothing of their tags is the same: the hash by which twemproxy finds a
// server hardly differs between texts of which only the end does, so that they would be on the same.
func (p *probe) keysOfAllShards() (keys []string) {
	var have [slots / slotsPerShard]bool
	for len(keys) < len(have) {
		key := p.prefix + "probe{" + rand.Text() + "}"
		if shard := slotOf(key) / slotsPerShard; !have[shard] {
			keys, have[shard] = append(keys, key), true
		}
	}
	return keys
}

func (p *probe) keysOfOneSlot() (keys []string) {
	for range slots / slotsPerShard {
		keys = append(keys, p.prefix+rand.Text()+"probe{"+p.mark+"}")
	}
	return keys
}

// share reports whether keys can share a script: one script marks them all, and one for each finds
// the mark.
func (p *probe) share(keys ...string) (shared bool, err error) {
	marked := []Call{p.call(markScript, keys...)}
	if p.do(marked); marked[0].Err != nil {
		return false, marked[0].Err
	}
	calls := make([]Call, len(keys))
	for i := range calls {
		calls[i] = p.call(unmarkScript, keys[i])
	}
	p.do(calls)
	shared = true
	for i := range calls {
		if calls[i].Err != nil {
			return false, calls[i].Err
		}
		shared = shared && len(calls[i].Reply) == 1 && calls[i].Reply[0] == 1
	}
	return shared, nil
}

func (p *probe) call(script *Script, keys ...string) Call {
	c := Call{Script: script, Keys: keys, Args: []string{p.mark}, tries: true}
	c.setForm(p.form)
	return c
}

// probeAgain probes in the background, if that is due.
func (s *Store) probeAgain(now time.Time) {
	due := s.probeAt.Load()
	if now.UnixNano() < due || !s.probeAt.CompareAndSwap(due, math.MaxInt64) {
		return
	}
	s.probed.Store(now.UnixNano())
	go func() {
		d := s.deadlineAfter(context.Background(), time.Now(), max(s.timeout, probeRetry))
		defer d.stop()
		next := probeInterval
		if err := s.probe(func(calls []Call) { s.roundTrip(d, calls) }); err != nil {
			_ = s.refused(err)
			next = probeRetry
		}
		s.scheduleProbe(next)
	}()
}

func (s *Store) scheduleProbe(after time.Duration) {
	now := time.Now()
	s.probed.Store(now.UnixNano())
	at := now.Add(after).UnixNano()
	if s.client.Sharded() {
		at = math.MaxInt64 // a Cluster says itself where its keys are
	}
	s.probeAt.Store(at)
}

// forgetSpread makes keys share no script until a call has made a probe: the server may be another one, or
// there may be several now.
func (s *Store) forgetSpread() {
	if !s.client.Sharded() {
		s.spread.Store(byKey)
		s.probeAt.Store(s.probed.Load() + int64(minProbeGap))
	}
}
