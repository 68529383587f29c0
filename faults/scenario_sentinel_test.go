package faults

import (
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// Faults of a primary that sentinels monitor.

const sentinel = "Sentinel"

// failOver is F6: the primary is killed, and a replica takes over.
func failOver(r *run) {
	w := redistest.StartSentinelGroup(r)
	l := r.start(w.URL())
	l.awaitAnswers(r.scale(1000))
	old := w.Primary(r)
	old.Kill()
	w.AllowFailover(r)
	r.history.recordLoss()
	redistest.WaitFor(r, "the sentinels choose another primary", func() bool { return w.Primary(r) != old })
	r.awaitFailover(l, w.Primary(r))
	r.servers = append(r.servers, w.Primary(r))
	r.prove("calls to a dead primary", r.history.count(&r.history.missed))
}

// awaitFailover waits until a server has become primary and gets calls, and logs how
// long the latter took.
func (r *run) awaitFailover(l *load, next *redistest.Server) {
	r.Helper()
	redistest.WaitFor(r, "the next primary is promoted", func() bool {
		role, err := next.Command("ROLE")
		return err == nil && strings.HasPrefix(role, "master")
	})
	start, before := time.Now(), redistest.InfoCounter(r, "cmdstat_evalsha", next)
	redistest.WaitFor(r, "the next primary gets calls", func() bool { return redistest.InfoCounter(r, "cmdstat_evalsha", next) > before })
	r.Logf("first call %v after the promotion", time.Since(start).Round(time.Millisecond))
	l.awaitAnswers(r.scale(500))
}

// splitBrain is F7: the primary freezes, is replaced, and wakes up still as primary.
func splitBrain(r *run) {
	w := redistest.StartSentinelGroup(r)
	l := r.start(w.URL())
	l.awaitAnswers(r.scale(1000))
	old := w.Primary(r)
	if err := old.Pause(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = old.Resume() })
	w.AllowFailover(r)
	redistest.WaitFor(r, "the sentinels choose another primary", func() bool { return w.Primary(r) != old })
	next := w.Primary(r)
	if err := old.Resume(); err != nil {
		r.Fatal(err)
	}
	r.awaitFailover(l, next)
	redistest.WaitFor(r, "the old primary is demoted", func() bool {
		role, err := old.Command("ROLE") // fails while it is being demoted
		return err == nil && strings.HasPrefix(role, "slave")
	})
	l.awaitAnswers(r.scale(500))
	r.servers = append(r.servers, next)
	r.prove("frozen primaries that were replaced", redistest.InfoCounter(r, "cmdstat_replicaof", old)+redistest.InfoCounter(r, "cmdstat_slaveof", old))
}
