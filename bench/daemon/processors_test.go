package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

func processorsOf(t *testing.T, pid int) (set unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(pid, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

func TestSeparateKeepsOneProcessorForServers(t *testing.T) {
	b, all := testBench(t), processorsOf(t, 0)
	undo := b.separate()
	defer undo()
	redis := b.startRedis()
	server := b.floor("http")
	want := placement{all, all}
	if all.Count() > 1 {
		want = splitProcessors(all)
	}
	if got := processorsOf(t, server.pids[0]); got != want.server {
		t.Errorf("a server runs on %v, want %v", got, want.server)
	}
	if got := processorsOf(t, redis.pids[0]); got != want.others {
		t.Errorf("other processes run on %v, want %v", got, want.others)
	}
	if undo(); processorsOf(t, 0) != all {
		t.Error("the load stays on its processors")
	}
}

func TestSharedProcessorsAreNotSeparated(t *testing.T) {
	b, all := testBench(t), processorsOf(t, 0)
	b.shared = true
	defer b.separate()()
	if b.placement != nil || processorsOf(t, 0) != all {
		t.Error("servers have a processor of their own")
	}
}

func TestSplitProcessors(t *testing.T) {
	var all unix.CPUSet
	for _, n := range []int{3, 4, 7} {
		all.Set(n)
	}
	p := splitProcessors(all)
	if !p.server.IsSet(3) || p.server.Count() != 1 {
		t.Errorf("servers run on %v", p.server)
	}
	if p.others.Count() != 2 || p.others.IsSet(3) {
		t.Errorf("other processes run on %v", p.others)
	}
}
