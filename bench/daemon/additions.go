package main

import (
	"cmp"
	"fmt"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// An addition is something that a daemon does beside its decisions. It is compared with the same daemon without it, by
// the processor time that a call costs the daemon and its Redis.
type addition struct {
	title   string
	limit   string // of the only rule, which never denies
	added   string // the same with the addition; default: no different
	flags   []string
	onRedis bool
	most    float64
}

func (b *bench) additions() []addition {
	const limit, also = "limit: 1/24h burst=20000", ", also: 1/12h burst=20000"
	const candidate = ", candidate: 2/24h burst=10000"
	recordings := b.file("recordings/none", "")
	tried := b.file("tried/bench.yaml", "domain: bench\ndescriptors: [{key: user, limit: 2/24h burst=10000}]\n")
	return []addition{
		{title: "a candidate, on Redis", limit: limit, added: limit + candidate, onRedis: true, most: 1.6},
		{title: "a candidate beside two limits, on Redis", limit: limit + also, added: limit + also + candidate, onRedis: true, most: 1.6},
		{title: "--candidate-rules, on Redis", limit: limit, flags: []string{"--candidate-rules", tried}, onRedis: true, most: 1.6},
		{title: "--record", limit: limit, flags: []string{"--record", recordings + ".d"}, most: 1.05},
	}
}

// compareAdditions compares a daemon with each addition with the same daemon without it.
func (b *bench) compareAdditions() {
	for _, a := range b.additions() {
		var redis *process
		serve := func(name, limit string, flags ...string) *subject {
			rules := b.file(name+"/bench.yaml", fmt.Sprintf("domain: bench\ndescriptors: [{key: user, %s}]\n", limit))
			if redis != nil {
				flags = append(flags, "--store", "redis://"+redis.addr, "--redis-prefix", name, "--redis-timeout", "10s")
			}
			daemon := b.serve("grpc", append(flags, "--rules", rules)...)
			daemon.name = name
			return b.rlsSubject(daemon, redis, oneDescriptor)
		}
		if a.onRedis {
			redis = b.startRedis()
		}
		without, with := serve("without", a.limit), serve("with", cmp.Or(a.added, a.limit), a.flags...)
		b.takeTurns(a.title, without, with)
		b.FindAtMost(a.title, harness.SpreadOf(harness.Ratios(with.served(), without.served())), a.most, "the processor time without")
		without.server.stop()
		with.server.stop()
	}
}

// served returns the processor time of a call in each turn, without that of the load.
func (s *subject) served() (times []float64) {
	for i, all := range s.Of("in all") {
		times = append(times, all-s.Of("load")[i])
	}
	return times
}
