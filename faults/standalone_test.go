package faults

import (
	"context"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// These faults befall one server, or the way there.

const standalone = "standalone"

// dieEmpty is F1.
func dieEmpty(r *run) {
	server := r.redis()
	l := r.start("redis://" + server.Addr)
	l.answers(r.few(2000))
	r.die(server)
	r.happened("scripts that the server had forgotten", redistest.InfoCounter(r, "errorstat_NOSCRIPT", server))
}

// die kills a server, and starts it again when callers have noticed.
func (r *run) die(server *redistest.Server) {
	r.Helper()
	before := redistest.InfoField(r, server, "run_id")
	server.Kill()
	r.history.loses()
	r.load.misses(100)
	r.restart(server)
	r.load.answers(r.few(1000))
	if redistest.InfoField(r, server, "run_id") != before {
		r.happened("servers with a new run id", 1)
	}
}

// dieRemembering is F2. Loading is slowed down, or else nobody would meet it.
func dieRemembering(r *run) {
	server := r.redis("--appendonly", "yes", "--aof-use-rdb-preamble", "yes",
		"--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")
	redistest.MustCommand(r, server, "EVAL", "for i = 1, 300 do redis.call('SET', i, string.rep('x', 1100), 'PX', 600000) end", "0")
	redistest.MustCommand(r, server, "BGREWRITEAOF")
	redistest.WaitFor(r, "the file is written anew", func() bool { return redistest.InfoField(r, server, "aof_rewrite_in_progress") == "0" })
	l := r.start("redis://" + server.Addr)
	l.answers(r.few(2000))
	r.die(server)
	r.happened("calls that met a server which was loading", redistest.InfoCounter(r, "errorstat_LOADING", server))
}

// hang is F3.
func hang(r *run) {
	server := r.redis()
	l := r.start("redis://" + server.Addr)
	l.answers(r.few(2000))
	redistest.MustCommand(r, server, "CONFIG", "RESETSTAT")
	before := r.history.count(&r.history.answered)
	if err := server.Pause(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = server.Resume() })
	l.misses(r.few(500))
	settled := r.spendsAway(l)
	if late := r.history.count(&r.history.answered) - before; late > 10*members {
		r.Errorf("%d calls were answered by a server that hangs", late)
	}
	if err := server.Resume(); err != nil {
		r.Fatal(err)
	}
	l.answers(r.few(1000))
	settled()
	r.happened("calls that the server had not answered in time", r.history.count(&r.history.missed))
}

// spendsAway takes some of a key that nobody else asks for while the store is away,
// and returns what waits until that is charged to the store (INV-21). Without a
// fallback there is nothing to charge.
func (r *run) spendsAway(l *load) (settled func()) {
	r.Helper()
	if r.layers != guarded {
		return func() {}
	}
	const key, cost = 7_000_000, 10
	e := r.history.ask(0, key, cost, func() (penstock.Decision, error) {
		return l.nodes[0].Take(context.Background(), r.request(key, cost))
	})
	if e.granted() != cost || e.decision.Source != penstock.SourceFallback {
		r.Errorf("a key that nobody has asked for, while the store is away: %s, %v", e.decision, e.err)
	}
	return func() {
		r.Helper()
		redistest.WaitFor(r, "INV-21 what was spent meanwhile is charged", func() bool {
			d, err := l.drain(r.request(key, 0))
			return err == nil && d.Remaining == capacity(r.limitOf(key))-cost
		})
	}
}

// slow is F4, within the time that a call may take.
func slow(r *run) {
	server := r.redis()
	p := redistest.StartProxy(r, server.Addr)
	l := r.start("redis://" + p.Addr)
	l.answers(r.few(1000))
	p.Delay(30 * time.Millisecond)
	l.answers(r.few(300))
	p.Delay(0)
	l.answers(r.few(300))
	r.happened("replies that were held back", p.DelayedReplies())
}

// tooSlow is F4, beyond it.
func tooSlow(r *run) {
	server := r.redis()
	p := redistest.StartProxy(r, server.Addr)
	l := r.start("redis://" + p.Addr)
	l.answers(r.few(1000))
	p.Delay(200 * time.Millisecond)
	l.misses(r.few(100))
	p.Delay(0)
	l.answers(r.few(300))
	r.happened("replies that came too late", min(p.DelayedReplies(), r.history.count(&r.history.missed)))
}

// cut is F5: the connection breaks after each byte of a reply in turn.
func cut(r *run) {
	server := r.redis()
	p := redistest.StartProxy(r, server.Addr)
	l := r.start("redis://" + p.Addr)
	for k := range r.few(20) {
		l.answers(50)
		before := p.Cuts()
		p.CutReplyAfter(k%10, k%2 == 0)
		redistest.WaitFor(r, "a reply is cut", func() bool { return p.Cuts() > before })
	}
	l.answers(300)
	r.happened("replies that were cut", p.Cuts())
}

// freeze is F5 too, where nobody is told that the connection is lost.
func freeze(r *run) {
	server := r.redis()
	p := redistest.StartProxy(r, server.Addr)
	l := r.start("redis://" + p.Addr)
	l.answers(r.few(1000))
	frozen := p.Freeze()
	l.misses(r.few(100))
	p.Thaw()
	l.answers(r.few(300))
	r.happened("connections that were half open", frozen)
}

// forgetScripts is F10.
func forgetScripts(r *run) {
	server := r.redis()
	l := r.start("redis://" + server.Addr)
	for range r.few(20) {
		l.answers(100)
		redistest.MustCommand(r, server, "SCRIPT", "FLUSH")
	}
	l.answers(100)
	r.happened("calls of a script that was forgotten", redistest.InfoCounter(r, "errorstat_NOSCRIPT", server))
}

// forgetKeys is not in the matrix by itself: FLUSHALL is the loss of F1 without its
// downtime.
func forgetKeys(r *run) {
	server := r.redis()
	l := r.start("redis://" + server.Addr)
	l.answers(r.few(2000))
	keys := redistest.InfoField(r, server, "db0")
	redistest.MustCommand(r, server, "FLUSHALL")
	r.history.loses()
	l.answers(r.few(1000))
	if keys != "" {
		r.happened("times that all keys were lost", redistest.InfoCounter(r, "cmdstat_flushall", server))
	}
}

// fill is F11: there is no memory for anything more.
func fill(r *run) {
	server := r.redis("--maxmemory-policy", "noeviction")
	l := r.start("redis://" + server.Addr)
	l.answers(r.few(2000))
	redistest.MustCommand(r, server, "CONFIG", "SET", "maxmemory", "1")
	l.misses(r.few(300))
	redistest.MustCommand(r, server, "CONFIG", "SET", "maxmemory", "0")
	l.answers(r.few(300))
	r.happened("calls for which there was no memory", redistest.InfoCounter(r, "errorstat_OOM", server))
}

// evict is F12: strangers' keys push ours out.
func evict(r *run) {
	server := r.redis("--maxmemory-policy", "allkeys-random")
	l := r.start("redis://" + server.Addr)
	l.answers(r.few(2000))
	if w := r.open("redis://"+server.Addr, generous).Warnings(); len(w) != 1 {
		r.Errorf("got warnings %q, want one of a policy that gives units back", w)
	}
	l.end() // so that every key is evicted at most once
	used, err := strconv.Atoi(redistest.InfoField(r, server, "used_memory"))
	if err != nil {
		r.Fatal(err)
	}
	redistest.MustCommand(r, server, "CONFIG", "SET", "maxmemory", strconv.Itoa(used+100_000))
	redistest.MustCommand(r, server, "EVAL", "for i = 1, 3000 do redis.call('SET', i, string.rep('x', 100), 'PX', 600000) end", "0")
	evicted, err := strconv.Atoi(redistest.InfoField(r, server, "evicted_keys"))
	if err != nil {
		r.Fatal(err)
	}
	redistest.MustCommand(r, server, "CONFIG", "SET", "maxmemory", "0")
	r.happened("keys that were evicted", evicted)
}

// demote is F13: the server becomes a replica for a moment, and says READONLY.
func demote(r *run) {
	server := r.redis()
	nobody := strconv.Itoa(redistest.FreePort(r))
	l := r.start("redis://" + server.Addr)
	for range r.few(3) {
		l.answers(300)
		before := redistest.InfoCounter(r, "errorstat_READONLY", server)
		redistest.MustCommand(r, server, "REPLICAOF", "127.0.0.1", nobody)
		redistest.WaitFor(r, "callers meet a replica", func() bool { return redistest.InfoCounter(r, "errorstat_READONLY", server) > before })
		redistest.MustCommand(r, server, "REPLICAOF", "NO", "ONE")
	}
	l.answers(300)
	r.happened("calls that met a replica", redistest.InfoCounter(r, "errorstat_READONLY", server))
}
