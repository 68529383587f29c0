package faults

import (
	"context"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// Faults of one server, or of the network to it.

const standalone = "standalone"

// killRedis is F1.
func killRedis(r *run) {
	server := r.redis()
	l := r.start("redis://" + server.Addr)
	l.awaitAnswers(r.scale(2000))
	r.killAndRestart(server)
	r.prove("calls of scripts that the server had lost", redistest.InfoCounter(r, "errorstat_NOSCRIPT", server))
}

// killAndRestart kills a server, and starts it again after some calls have missed it.
func (r *run) killAndRestart(server *redistest.Server) {
	r.Helper()
	r.killAndRestartBy(server, r.restart)
}

// killAndRestartBy is killAndRestart with a function that starts the server again.
func (r *run) killAndRestartBy(server *redistest.Server, restart func(*redistest.Server)) {
	r.Helper()
	before := redistest.InfoField(r, server, "run_id")
	server.Kill()
	r.history.recordLoss()
	r.load.awaitMisses(100)
	restart(server)
	r.load.awaitAnswers(r.scale(1000))
	if redistest.InfoField(r, server, "run_id") != before {
		r.prove("servers with a new run id", 1)
	}
}

// killRedisWithAOF is F2. Loading is slowed down until calls have arrived during it. While a
// disk is slow to sync, Redis answers calls that it has not written to the file yet, so it
// does not sync.
func killRedisWithAOF(r *run) {
	server := r.redis("--appendonly", "yes", "--appendfsync", "no", "--aof-use-rdb-preamble", "yes",
		"--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")
	redistest.MustCommand(r, server, "EVAL", "for i = 1, 12000 do redis.call('SET', i, string.rep('x', 1100), 'PX', 600000) end", "0")
	redistest.MustCommand(r, server, "BGREWRITEAOF")
	redistest.WaitFor(r, "the AOF is rewritten", func() bool { return redistest.InfoField(r, server, "aof_rewrite_in_progress") == "0" })
	l := r.start("redis://" + server.Addr)
	l.awaitAnswers(r.scale(2000))
	r.killAndRestartBy(server, r.restartLoading)
	r.prove("calls to a loading server", redistest.InfoCounter(r, "errorstat_LOADING", server))
}

// restartLoading starts a killed server again, whose loading takes minutes until calls
// have missed it.
func (r *run) restartLoading(server *redistest.Server) {
	r.Helper()
	restarted := make(chan error, 1)
	go func() { restarted <- server.Restart() }()
	redistest.WaitFor(r, "the server is loading", func() bool {
		_, err := server.Command("PING")
		return err != nil && strings.HasPrefix(err.Error(), "LOADING")
	})
	r.load.awaitMisses(100)
	redistest.MustCommand(r, server, "CONFIG", "SET", "key-load-delay", "0")
	if err := <-restarted; err != nil {
		r.Fatal(err)
	}
}

// hangRedis is F3.
func hangRedis(r *run) {
	server := r.redis()
	l := r.start("redis://" + server.Addr)
	l.awaitAnswers(r.scale(2000))
	redistest.MustCommand(r, server, "CONFIG", "RESETSTAT")
	if err := server.Pause(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = server.Resume() })
	before := r.history.count(&r.history.answered) // but for those that were answered already
	l.awaitMisses(r.scale(500))
	settled := r.spendDuringOutage(l)
	if late := r.history.count(&r.history.answered) - before; late > 10*callers {
		r.Errorf("%d calls were answered by a server that hangs", late)
	}
	if err := server.Resume(); err != nil {
		r.Fatal(err)
	}
	l.awaitAnswers(r.scale(1000))
	settled()
	r.prove("calls that timed out", r.history.count(&r.history.missed))
}

// spendDuringOutage takes units of an unused key while the store is down, and returns
// a function that waits until they are charged to the store (INV-21). Without a
// fallback there is nothing to charge.
func (r *run) spendDuringOutage(l *load) (settled func()) {
	r.Helper()
	if r.layers != withFallback {
		return func() {}
	}
	const key, cost = 7_000_000, 10
	e := r.history.record(0, key, cost, func() (penstock.Decision, error) {
		return l.nodes[0].Take(context.Background(), r.request(key, cost))
	})
	if e.granted() != cost || e.decision.Source != penstock.SourceFallback {
		r.Errorf("an unused key while the store is down: %s, %v", e.decision, e.err)
	}
	return func() {
		r.Helper()
		l.end() // on a busy machine the load alone can keep the store beyond its timeout
		redistest.WaitFor(r, "INV-21 what the fallback granted is charged", func() bool {
			_, _ = l.nodes[0].Take(context.Background(), r.request(key, 0)) // a fallback probes when it is called
			d, err := l.drain(r.request(key, 0))
			return err == nil && d.Remaining == capacity(r.limitOf(key))-cost
		})
	}
}

// delayReplies is F4, within the timeout.
func delayReplies(r *run) {
	server := r.redis()
	p := redistest.StartProxy(r, server.Addr)
	l := r.start("redis://" + p.Addr)
	l.awaitAnswers(r.scale(1000))
	p.Delay(30 * time.Millisecond)
	l.awaitAnswers(r.scale(300))
	p.Delay(0)
	l.awaitAnswers(r.scale(300))
	r.prove("delayed replies", p.DelayedReplies())
}

// delayRepliesPastTimeout is F4, beyond the timeout.
func delayRepliesPastTimeout(r *run) {
	server := r.redis()
	p := redistest.StartProxy(r, server.Addr)
	l := r.start("redis://" + p.Addr)
	l.awaitAnswers(r.scale(1000))
	p.Delay(200 * time.Millisecond)
	l.awaitMisses(r.scale(100))
	p.Delay(0)
	l.awaitAnswers(r.scale(300))
	r.prove("replies that came too late", min(p.DelayedReplies(), r.history.count(&r.history.missed)))
}

// cutReplies is F5: the connection breaks after each byte of a reply in turn.
func cutReplies(r *run) {
	server := r.redis()
	p := redistest.StartProxy(r, server.Addr)
	l := r.start("redis://" + p.Addr)
	for k := range r.scale(20) {
		l.awaitAnswers(50)
		before := p.Cuts()
		p.CutReplyAfter(k%10, k%2 == 0)
		redistest.WaitFor(r, "a reply is cut", func() bool { return p.Cuts() > before })
	}
	l.awaitAnswers(300)
	r.prove("cut replies", p.Cuts())
}

// freezeConnections is F5 too: connections are lost without notice.
func freezeConnections(r *run) {
	server := r.redis()
	p := redistest.StartProxy(r, server.Addr)
	l := r.start("redis://" + p.Addr)
	l.awaitAnswers(r.scale(1000))
	frozen := p.Freeze()
	l.awaitMisses(r.scale(100))
	p.Thaw()
	l.awaitAnswers(r.scale(300))
	r.prove("half-open connections", frozen)
}

// flushScripts is F10.
func flushScripts(r *run) {
	server := r.redis()
	l := r.start("redis://" + server.Addr)
	for range r.scale(20) {
		l.awaitAnswers(100)
		redistest.MustCommand(r, server, "SCRIPT", "FLUSH")
	}
	l.awaitAnswers(100)
	r.prove("calls of a flushed script", redistest.InfoCounter(r, "errorstat_NOSCRIPT", server))
}

// flushKeys is F1 too: FLUSHALL is its loss without the downtime.
func flushKeys(r *run) {
	server := r.redis()
	l := r.start("redis://" + server.Addr)
	l.awaitAnswers(r.scale(2000))
	keys := redistest.InfoField(r, server, "db0")
	redistest.MustCommand(r, server, "FLUSHALL")
	r.history.recordLoss()
	l.awaitAnswers(r.scale(1000))
	if keys != "" {
		r.prove("flushes of all keys", redistest.InfoCounter(r, "cmdstat_flushall", server))
	}
}

// fillRedis is F11: Redis is out of memory.
func fillRedis(r *run) {
	server := r.redis("--maxmemory-policy", "noeviction")
	l := r.start("redis://" + server.Addr)
	l.awaitAnswers(r.scale(2000))
	redistest.MustCommand(r, server, "CONFIG", "SET", "maxmemory", "1")
	l.awaitMisses(r.scale(300))
	redistest.MustCommand(r, server, "CONFIG", "SET", "maxmemory", "0")
	l.awaitAnswers(r.scale(300))
	r.prove("calls that failed for lack of memory", redistest.InfoCounter(r, "errorstat_OOM", server))
}

// evictKeys is F12: other keys evict those of the load.
func evictKeys(r *run) {
	server := r.redis("--maxmemory-policy", "allkeys-random")
	l := r.start("redis://" + server.Addr)
	l.awaitAnswers(r.scale(2000))
	if w := r.open("redis://"+server.Addr, longTimeout).Warnings(); len(w) != 1 {
		r.Errorf("got warnings %q, want one about the eviction policy", w)
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
	r.prove("evicted keys", evicted)
}

// demoteRedis is F13: the server becomes a replica for a moment, and replies READONLY.
// Its primary is a listener that never answers.
func demoteRedis(r *run) {
	server := r.redis()
	primary, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = primary.Close() })
	port := strconv.Itoa(primary.Addr().(*net.TCPAddr).Port)
	l := r.start("redis://" + server.Addr)
	for range r.scale(3) {
		l.awaitAnswers(300)
		before := redistest.InfoCounter(r, "errorstat_READONLY", server)
		redistest.MustCommand(r, server, "REPLICAOF", "127.0.0.1", port)
		redistest.WaitFor(r, "calls reach a replica", func() bool { return redistest.InfoCounter(r, "errorstat_READONLY", server) > before })
		redistest.MustCommand(r, server, "REPLICAOF", "NO", "ONE")
	}
	l.awaitAnswers(300)
	r.prove("calls to a replica", redistest.InfoCounter(r, "errorstat_READONLY", server))
}
