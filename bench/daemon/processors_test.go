package main

import (
	"slices"
	"testing"
)

func TestSeparateKeepsOneProcessorForServers(t *testing.T) {
	b, all := testBench(t), processorsOf(0)
	undo := b.separate()
	defer undo()
	server, others := all, all
	if len(all) > 1 {
		server, others = all[:1], all[1:]
	}
	if got := processorsOf(b.floor("http").pids[0]); !slices.Equal(got, server) {
		t.Errorf("a server runs on %v, want %v", got, server)
	}
	if got := processorsOf(b.startRedis().pids[0]); !slices.Equal(got, others) {
		t.Errorf("other processes run on %v, want %v", got, others)
	}
	if undo(); !slices.Equal(processorsOf(0), all) {
		t.Error("the load stays on its processors")
	}
}

func TestSharedProcessorsAreNotSeparated(t *testing.T) {
	b, all := testBench(t), processorsOf(0)
	b.shared = true
	defer b.separate()()
	if b.onServerProcessor != nil || !slices.Equal(processorsOf(0), all) {
		t.Error("servers have a processor of their own")
	}
}
