package main

import (
	"bytes"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func TestMain(m *testing.M) {
	harness.RunIfChild(serveFloor)
	os.Exit(m.Run())
}

// Every case runs and verifies its workload. The rival is not built.
func TestCasesRunQuick(t *testing.T) {
	var out, stderr bytes.Buffer
	if status := command([]string{"-quick"}, &out, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	for _, want := range []string{
		"| RLS, 1 descriptor, 10,000 keys, 64 callers, memory store | ≥ 0.95×",
		"| the same with 3 descriptors | ≥ 0.85×",
		"| RLS on Redis, 1 descriptor | ≥ 1.7× envoyproxy/ratelimit, and a p99 that is no higher |",
		"| RLS on Redis, 3 descriptors | ≥ 2.2×",
		"| RLS on Redis, 3 descriptors | ≥ 0.7× our rate with 1 |",
		"| penstock ratelimit on Redis, 3 descriptors | ≥ 2.2×",
		"| RLS on Redis, 3 descriptors, one of them denied for half of the keys | ≥ 1.25×",
		"| RLS on a Redis Cluster of 3 shards with replicas, 3 descriptors | ≥ 1.5×",
		"without the rival",
		"| CL.THROTTLE, redis-benchmark -c 50 -P 16 | ≥ 0.95×",
		"| CL.THROTTLE, redis-benchmark -c 50 -P 16 | ≥ 2.5×",
		"| CL.THROTTLE, redis-benchmark -c 50 -P 1 | ≥ 0.7×",
		"| HTTP take, keep-alive, 10,000 keys, 64 callers | ≥ 0.75×",
		"| an override is in force on 3 daemons under load, of 100,000 | ≤ 1 s after its answer, each of them |",
		"| Redis is killed and restarts empty | the daemons write all overrides again |",
		"| a candidate, on Redis | ≤ 1.6× the processor time without",
		"| --record | ≤ 1.05× the processor time without",
		"| memory of the process, idle | ≤ 40 MB",
		"not checked",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
}

// testBench returns a bench that ends with the test.
func testBench(t *testing.T) *bench {
	b := &bench{Run: harness.New("daemon", t.Output(), t.Output())}
	t.Cleanup(b.Close)
	return b
}

func TestSubjectFailsOnWrongResponse(t *testing.T) {
	s := httpSubject(testBench(t).floor("http"))
	s.turn(10 * time.Millisecond)
	if s.Median("rate") <= 0 || s.Median("p99") <= 0 {
		t.Errorf("rate %v, p99 %v", s.Of("rate"), s.Of("p99"))
	}
	refuse := func(int) error { return os.ErrInvalid }
	if err := harness.Try(func() { newSubject(&process{}, nil, loadByCallers(refuse)).turn(10 * time.Millisecond) }); err == nil {
		t.Error("a wrong response was not an error")
	}
}

// The floor answers every request with OK, one limit and 999 remaining units.
func TestRLSCheckFailsOnWrongResponses(t *testing.T) {
	p := testBench(t).floor("grpc1")
	for _, c := range []struct {
		load rlsLoad
		want string
	}{
		{rlsLoad{descriptors: 1, constant: true}, ""},
		{oneDescriptor, "2 calls, and from 999 to 999 remained"},
		{threeDescriptors, "want 3 limits"},
		{rlsLoad{descriptors: 1, denyHalf: true}, "want OVER_LIMIT"},
	} {
		client, check := dialRLS(p.addr, c.load), newRLSCheck(c.load)
		_, err := client.send(time.Time{}, 2*keyCount, check)
		if err == nil {
			err = check.sums(check.began)
		}
		if client.close(); err == nil && c.want != "" || err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q", c.load, err, c.want)
		}
	}
}

// A server without the service ends each call with a status.
func TestRLSClientFailsOnStatus(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	defer server.Stop()
	go func() { _ = server.Serve(listener) }()
	client := dialRLS(listener.Addr().String(), oneDescriptor)
	defer client.close()
	if _, err := client.send(time.Time{}, keyCount, newRLSCheck(oneDescriptor)); err == nil || !strings.Contains(err.Error(), `grpc-status "12"`) {
		t.Errorf("got %v, want the status of an unknown service", err)
	}
}

func TestCommandRejectsBadFlags(t *testing.T) {
	var out, stderr bytes.Buffer
	for _, args := range [][]string{{"-pairs", "0"}, {"-run", "("}, {"-nonsense"}} {
		if status := command(args, &out, &stderr); status != 2 {
			t.Errorf("%q: status %d, want 2", args, status)
		}
	}
}
