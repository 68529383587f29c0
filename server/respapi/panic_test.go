package respapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// newPanickingEngine returns an engine whose store panics about keys that contain "bad".
func newPanickingEngine(o *engine.Options) *engine.Engine {
	memory := newFakeClock().memory()
	return engine.New(penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if strings.Contains(r.Key, "bad") {
			panic("a defect of the store")
		}
		return memory.Take(ctx, r)
	}), o)
}

func newRequestLog(t *testing.T, w io.Writer) *requestlog.Log {
	t.Helper()
	l, err := requestlog.New(requestlog.Options{API: "resp", Log: slog.New(slog.NewTextHandler(w, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// replies returns what a connection is sent for a pipeline.
func replies(s *Server, pipeline string) string {
	nc := &fakeConn{pieces: [][]byte{[]byte(pipeline)}}
	s.startConn(nc)
	s.openConns.Wait()
	return nc.sent.String()
}

func TestPanicOfTheStoreEndsOnlyItsConnection(t *testing.T) {
	var lines bytes.Buffer
	e := newPanickingEngine(nil)
	e.SetRules(testRules(t))
	s := must(New(e, &Options{Requests: newRequestLog(t, &lines)}))
	other := newFakeClient(s)
	const internal = "-ERR internal error\r\n"
	for _, c := range []struct{ name, pipeline, want string }{
		{"batch of one", "PENSTOCK.TAKE KEY bad LIMIT 5/1m\r\nPING\r\n", internal},
		{"batch", "PING\r\nCL.THROTTLE good 4 5 60\r\nCL.THROTTLE bad 4 5 60\r\nCL.THROTTLE good 4 5 60\r\n", "+PONG\r\n" + internal},
		{"by rules", "CL.THROTTLE k 4 5 60\r\nPENSTOCK.TAKE DOMAIN shop user bad\r\nPING\r\n", "*5\r\n:0\r\n:5\r\n:4\r\n:-1\r\n:12\r\n" + internal},
		{"keys", "PING\r\nTTL bad\r\nPING\r\n", "+PONG\r\n" + internal},
	} {
		if got := replies(s, c.pipeline); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	if got := other.do(t, "PING"); got != "+PONG" {
		t.Errorf("another connection: got %s", got)
	}
	if got := lines.String(); !strings.Contains(got, "level=ERROR msg=panic") || !strings.Contains(got, "a defect of the store") || !strings.Contains(got, "panic_test.go") {
		t.Errorf("logged %s, want the panic with its stack", got)
	}
}

// The room of requests whose batch panicked is free again once their state would have expired.
func TestPanicOfTheStoreSettlesAdmissions(t *testing.T) {
	clock := newFakeClock()
	e := newPanickingEngine(&engine.Options{DistrustLocal: true, RequestLimits: requestlimits.Options{MaxStoreBytes: 1 << 16, Now: clock.now}})
	s := must(New(e, &Options{Requests: newRequestLog(t, io.Discard)}))
	take := func(i int) string { return replies(s, fmt.Sprintf("PENSTOCK.TAKE KEY bad%d LIMIT 9/1m\r\n", i)) }
	n := 0
	for ; strings.Contains(take(n), "internal error"); n++ {
		if n > 1<<20 {
			t.Fatal("the bound of the store was never reached")
		}
	}
	clock.add(time.Hour)
	if got := take(0); !strings.Contains(got, "internal error") {
		t.Errorf("after %d keys have expired: got %q", n, got)
	}
}
