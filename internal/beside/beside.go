// Package beside runs calls beside another one.
package beside

import (
	"sync"
	"time"
)

// A Pool runs functions on goroutines that it keeps for a while. The stack of a new goroutine is small: growing it for
// each call of a store would cost as much as the call.
type Pool struct{ calls chan func() }

// NewPool returns a pool without goroutines.
func NewPool() *Pool { return &Pool{make(chan func())} }

// Start runs a function beside the caller, and returns one that waits for its end.
func (p *Pool) Start(run func()) (wait func()) {
	var done sync.WaitGroup
	done.Add(1)
	call := func() {
		defer done.Done()
		run()
	}
	select {
	case p.calls <- call:
	default:
		go p.work(call)
	}
	return done.Wait
}

// idleTime is how long a goroutine is kept without calls.
const idleTime = time.Second

func (p *Pool) work(call func()) {
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for {
		call()
		idle.Reset(idleTime)
		select {
		case call = <-p.calls:
		case <-idle.C:
			return
		}
	}
}
