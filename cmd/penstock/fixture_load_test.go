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

// A scriptLoad runs callers that send requests until their listener is closed.
type scriptLoad struct {
	callers sync.WaitGroup
	allowed atomic.Int64 // requests
	warm    atomic.Int64 // callers with at least warmRequests responses

	mu       sync.Mutex
	failures []string
}

const (
	callersPerAPI = 8
	warmRequests  = 25
)

// startLoad starts callers of each API, and waits until every one of them has an
// established connection and some responses.
func startLoad(ts *testscript.TestScript, _ bool, apis []string) {
	l := &scriptLoad{}
	daemonOf(ts).load = l
	for _, api := range apis {
		o := benchOptions{api: api, addr: ts.Getenv(strings.ToUpper(api)), domain: "shop", callers: callersPerAPI, units: 1_000_000, keys: 1}
		open, closeAll, err := openAPI(o)
		ts.Check(err)
		ts.Defer(closeAll)
		for range callersPerAPI {
			c, err := open()
			ts.Check(err)
			l.callers.Go(func() { l.run(api, c) })
		}
	}
	deadline := time.After(waitTimeout)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	want := int64(callersPerAPI * len(apis))
	for l.warm.Load() < want {
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("after %v, %d of %d callers have %d responses; failures: %q", waitTimeout, l.warm.Load(), want, warmRequests, l.failed())
		}
	}
}

// run sends requests until the listener is closed.
func (l *scriptLoad) run(api string, c loadClient) {
	defer c.close()
	request := []loadRequest{{key: "user:42"}}
	for n := 1; ; n++ {
		err := c.send(request)
		switch {
		case err != nil && isClosed(api, err):
			return
		case err != nil:
			l.fail("%s: %v", api, err)
			return
		case !request[0].allowed:
			l.fail("%s: denied", api)
			return
		}
		l.allowed.Add(1)
		if n == warmRequests {
			l.warm.Add(1)
		}
	}
}

// isClosed reports whether an error means that the listener is closed. RESP has no way to
// announce that before the connection ends; a reply that is cut off is another error.
func isClosed(api string, err error) bool {
	if api == "resp" && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
		return true
	}
	return errors.Is(err, syscall.ECONNREFUSED) || api == "grpc" && strings.Contains(err.Error(), "connection refused")
}

func (l *scriptLoad) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, fmt.Sprintf(format, args...))
}

func (l *scriptLoad) failed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures
}

// checkLoad waits until all callers have found their listener closed, and checks that
// no request before that failed.
func checkLoad(ts *testscript.TestScript, _ bool, _ []string) {
	l := daemonOf(ts).load
	done := make(chan struct{})
	go func() {
		l.callers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(waitTimeout):
		ts.Fatalf("after %v some callers are still running", waitTimeout)
	}
	if failed := l.failed(); len(failed) > 0 {
		ts.Fatalf("%d requests were allowed, then some failed:\n%s", l.allowed.Load(), strings.Join(failed, "\n"))
	}
	ts.Logf("%d requests, none failed", l.allowed.Load())
}
