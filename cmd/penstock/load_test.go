package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// A scriptLoad is callers who ask doors until they find them closed.
type scriptLoad struct {
	callers  sync.WaitGroup
	answered atomic.Int64
	mu       sync.Mutex
	harm     []string
}

const callersPerDoor = 8

func startLoad(ts *testscript.TestScript, _ bool, doors []string) {
	d := daemonOf(ts)
	d.load = &scriptLoad{}
	for _, door := range doors {
		o := benchOptions{door: door, addr: ts.Getenv(strings.ToUpper(door)), domain: "shop", callers: callersPerDoor, each: 1_000_000, keys: 1}
		open, hangUp, err := dial(o)
		ts.Check(err)
		ts.Defer(hangUp)
		for range callersPerDoor {
			a, err := open()
			ts.Check(err)
			d.load.callers.Go(func() { d.load.call(door, a) })
		}
	}
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for d.load.answered.Load() < int64(200*len(doors)) {
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("after %v only %d questions have been answered: %q", patience, d.load.answered.Load(), d.load.harm)
		}
	}
}

// call asks until the door is closed.
func (l *scriptLoad) call(door string, a asker) {
	defer a.close()
	q := []question{{key: "somebody"}}
	for {
		err := a.ask(q)
		switch {
		case err == nil && q[0].granted:
			l.answered.Add(1)
		case err == nil:
			l.hurt("%s: denied", door)
			return
		case isGone(door, err):
			return
		default:
			l.hurt("%s: %v", door, err)
			return
		}
	}
}

// isGone reports whether an error says that nobody listens any more. A Redis client
// cannot be told that before its connection ends.
func isGone(door string, err error) bool {
	if door == "resp" && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
		return true
	}
	return errors.Is(err, syscall.ECONNREFUSED) || door == "grpc" && strings.Contains(err.Error(), "connection refused")
}

func (l *scriptLoad) hurt(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.harm = append(l.harm, fmt.Sprintf(format, args...))
}

func checkLoad(ts *testscript.TestScript, _ bool, _ []string) {
	l := daemonOf(ts).load
	done := make(chan struct{})
	go func() {
		l.callers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		ts.Fatalf("after %v somebody still asks", patience)
	}
	if len(l.harm) > 0 {
		ts.Fatalf("after %d answers: %s", l.answered.Load(), strings.Join(l.harm, "\n"))
	}
	ts.Logf("%d questions, all of them answered", l.answered.Load())
}
