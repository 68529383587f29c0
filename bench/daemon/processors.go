package main

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A placement says on which processors the processes of a comparison run. If the server that is
// measured shares all of them with its Redis and the load, the kernel often wakes a process on
// the processor of the one that wakes it, though another is idle, so that the faster server
// leaves more of the machine unused. In production these are different machines.
type placement struct {
	server, others unix.CPUSet
}

// separated returns a case during which servers that are measured have a processor of their own.
func (b *bench) separated(run func()) func() {
	return func() {
		defer b.separate()()
		run()
	}
}

// separate keeps the first processor free for servers that are measured, until undo: the load,
// and every other process that it starts, runs on the others. With one processor, or -shared, it
// does nothing.
func (b *bench) separate() (undo func()) {
	var all unix.CPUSet
	harness.Check(unix.SchedGetaffinity(0, &all))
	if b.shared || all.Count() < 2 {
		return func() {}
	}
	p := splitProcessors(all)
	harness.Check(moveThreads(&p.others))
	b.placement = &p
	return func() {
		b.placement = nil
		_ = moveThreads(&all) // it was possible before
	}
}

// splitProcessors returns the first processor of a set, and the others.
func splitProcessors(all unix.CPUSet) (p placement) {
	p.others = all
	first := 0
	for !all.IsSet(first) {
		first++
	}
	p.server.Set(first)
	p.others.Clear(first)
	return p
}

// moveThreads moves all threads of this process, until there is no new one: a thread begins on
// the processors of the one that started it.
func moveThreads(to *unix.CPUSet) error {
	moved := map[string]bool{}
	for {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		before := len(moved)
		for _, t := range threads {
			if moved[t.Name()] {
				continue
			}
			moved[t.Name()] = true
			if err := moveThread(t.Name(), to); err != nil {
				return err
			}
		}
		if len(moved) == before {
			return nil
		}
	}
}

func moveThread(name string, to *unix.CPUSet) error {
	id, err := strconv.Atoi(name)
	if err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(id, to); err != unix.ESRCH { // it has ended
		return err
	}
	return nil
}

// onServerProcessor calls a function that starts a server that is measured. A process begins on the
// processors of the thread that starts it.
func (b *bench) onServerProcessor(start func()) {
	if b.placement == nil {
		start()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	harness.Check(unix.SchedSetaffinity(0, &b.placement.server))
	defer func() { harness.Check(unix.SchedSetaffinity(0, &b.placement.others)) }()
	start()
}
