// Package beside runs calls beside another one.
package beside

import (
	"sync"
	"time"
)

// A Crew runs functions on goroutines that it keeps for a while. The stack of a new goroutine is small: growing it for
// each call of a store would cost as much as the call.
type Crew struct{ calls chan func() }

// NewCrew returns a crew without goroutines.
func NewCrew() *Crew { return &Crew{make(chan func())} }

// Start runs a function beside the caller, and returns one that waits for its end.
func (c *Crew) Start(run func()) (wait func()) {
	var done sync.WaitGroup
	done.Add(1)
	call := func() {
		defer done.Done()
		run()
	}
	select {
	case c.calls <- call:
	default:
		go c.work(call)
	}
	return done.Wait
}

// idleTime is how long a goroutine is kept without calls.
const idleTime = time.Second

func (c *Crew) work(call func()) {
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for {
		call()
		idle.Reset(idleTime)
		select {
		case call = <-c.calls:
		case <-idle.C:
			return
		}
	}
}
