package faults

import (
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// These faults befall a primary that sentinels watch.

const sentinel = "Sentinel"

// failOver is F6: the primary is killed, and a replica takes over.
func failOver(r *run) {
	w := redistest.StartSentinelGroup(r)
	l := r.start(w.URL())
	l.answers(r.few(1000))
	old := w.Primary(r)
	old.Kill()
	r.history.loses()
	redistest.WaitFor(r, "the sentinels choose another primary", func() bool { return w.Primary(r) != old })
	r.recovers(l, w.Primary(r))
	r.servers = append(r.servers, w.Primary(r))
	r.happened("calls of a primary that was dead", r.history.count(&r.history.missed))
}

// recovers waits until a server that has taken over is asked, and says how long
// that took.
func (r *run) recovers(l *load, next *redistest.Server) {
	r.Helper()
	redistest.WaitFor(r, "the next primary takes over", func() bool {
		role, err := next.Command("ROLE")
		return err == nil && strings.HasPrefix(role, "master")
	})
	began, before := time.Now(), redistest.InfoCounter(r, "cmdstat_evalsha", next)
	redistest.WaitFor(r, "the next primary is asked", func() bool { return redistest.InfoCounter(r, "cmdstat_evalsha", next) > before })
	r.Logf("asked %v after it took over", time.Since(began).Round(time.Millisecond))
	l.answers(r.few(500))
}

// splitBrain is F7: the primary freezes, is replaced, and wakes up again in the
// belief that nothing has happened.
func splitBrain(r *run) {
	w := redistest.StartSentinelGroup(r)
	l := r.start(w.URL())
	l.answers(r.few(1000))
	old := w.Primary(r)
	if err := old.Pause(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = old.Resume() })
	redistest.WaitFor(r, "the sentinels choose another primary", func() bool { return w.Primary(r) != old })
	next := w.Primary(r)
	if err := old.Resume(); err != nil {
		r.Fatal(err)
	}
	r.recovers(l, next)
	redistest.WaitFor(r, "the old primary is told", func() bool {
		role, err := old.Command("ROLE") // which fails when it is told in the middle of it
		return err == nil && strings.HasPrefix(role, "slave")
	})
	l.answers(r.few(500))
	r.servers = append(r.servers, next)
	r.happened("primaries that were replaced behind their back", redistest.InfoCounter(r, "cmdstat_replicaof", old)+redistest.InfoCounter(r, "cmdstat_slaveof", old))
}
