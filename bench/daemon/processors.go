package main

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// A placement says on which processors the processes of a comparison run. If the server that is
// measured shares all of them with its Redis and the load, the kernel often wakes a process on
// the processor of the one that wakes it, though another is idle, so that the faster server
// leaves more of the machine unused. In production these are different machines.
type placement struct {
	server, others unix.CPUSet
}

// separated returns a case during which servers that are measured have a processor of their own.
func separated(run func(*bench) error) func(*bench) error {
	return func(b *bench) error {
		undo, err := b.separate()
		if err != nil {
			return err
		}
		defer undo()
		return run(b)
	}
}

// separate keeps the first processor free for servers that are measured, until undo: the load,
// and every other process that it starts, runs on the others. With one processor, or -shared, it
// does nothing.
func (b *bench) separate() (undo func(), err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, err
	}
	if b.shared || all.Count() < 2 {
		return func() {}, nil
	}
	p := splitProcessors(all)
	if err := moveThreads(&p.others); err != nil {
		return nil, err
	}
	b.placement = &p
	return func() {
		b.placement = nil
		_ = moveThreads(&all) // it was possible before
	}, nil
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

// startServer starts a server that is measured. A process begins on the processors of the thread
// that starts it.
func (b *bench) startServer(name, addr string, cmd *exec.Cmd) (*process, error) {
	if b.placement == nil {
		return start(name, addr, cmd)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetaffinity(0, &b.placement.server); err != nil {
		return nil, err
	}
	p, err := start(name, addr, cmd)
	if err := unix.SchedSetaffinity(0, &b.placement.others); err != nil {
		return nil, err
	}
	return p, err
}
