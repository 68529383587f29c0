package respapi

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// BenchmarkThrottle measures a CL.THROTTLE without the system calls.
func BenchmarkThrottle(b *testing.B) {
	c := newFakeClient(newServer(b, penstock.NewMemory(nil), nil, nil, nil))
	c.in = []byte(strings.Repeat(encode("CL.THROTTLE", "key:000000004711", "15", "30", "60"), 16))
	for b.Loop() {
		c.start, c.end = 0, len(c.in)
		c.executeBuffered()
		c.out.buf = c.out.buf[:0]
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(16*b.N), "ns/command")
}

func TestThrottleAllocatesNothing(t *testing.T) {
	c := newFakeClient(newServerWithClock(newFakeClock()))
	raw := strings.Repeat(encode("CL.THROTTLE", "user:42", "15", "30", "60"), 15) +
		encode("cl.throttle", "user:43", "15", "30", "60", "2")
	c.in = []byte(raw)
	decide := func() {
		c.start, c.end = 0, len(c.in)
		c.executeBuffered()
		if n := bytes.Count(c.out.buf, []byte("*5\r\n")); n != 16 {
			t.Fatalf("%d replies to 16 commands: %q", n, c.out.buf)
		}
		c.out.buf = c.out.buf[:0]
	}
	if n := testing.AllocsPerRun(100, decide); n != 0 {
		t.Errorf("16 commands allocate %v times, want 0", n)
	}
}

func TestKeyTooLongIsRejectedBeforeStore(t *testing.T) {
	takes := 0
	store := penstock.StoreFunc(func(t context.Context, r penstock.Request) (penstock.Decision, error) {
		takes++
		return penstock.AllowAll.Take(t, r)
	})
	c := newFakeClient(newServer(t, store, nil, nil, nil))
	long := strings.Repeat("k", maxKey+1)
	for _, words := range [][]string{{"CL.THROTTLE", long, "15", "30", "60"}, {"GET", long}, {"DEL", "a", long}, {"EXISTS", long}} {
		if got := c.do(t, words...); !strings.HasSuffix(got, "key of 4097 bytes: must be at most 4096") {
			t.Errorf("%s: got %s", words[0], got)
		}
	}
	if takes > 0 {
		t.Errorf("the store was called %d times", takes)
	}
	if got := c.do(t, "CL.THROTTLE", long[1:], "15", "30", "60"); got != "*5 :0 :16 :16 :-1 :0" {
		t.Errorf("a key of %d bytes: got %s", maxKey, got)
	}
}

func TestSecondsRounding(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, time.Nanosecond: 0, 400 * time.Microsecond: 0, 999_999: 0, time.Millisecond: 1,
		999 * time.Millisecond: 1, time.Second: 1, 5*time.Second + 400*time.Microsecond: 5,
		5*time.Second + time.Millisecond: 6, math.MaxInt64: 9223372037,
	} {
		if got := seconds(d); got != want {
			t.Errorf("seconds(%v): got %d, want %d", d, got, want)
		}
	}
}

func TestThrottleCountsDecisions(t *testing.T) {
	for name, store := range map[string]penstock.Store{
		"memory": penstock.NewMemory(nil), "batched store": &countingStore{Store: penstock.NewMemory(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, store, nil, nil, nil)
			c := newFakeClient(s)
			c.do(t, "CL.THROTTLE", "alice", "4", "1", "3600", "2") // 2 of 5
			c.do(t, "CL.THROTTLE", "alice", "4", "1", "3600", "0") // a peek
			c.do(t, "CL.THROTTLE", "alice", "4", "1", "3600")      // 3 of 5
			c.do(t, "CL.THROTTLE", "alice", "4", "1", "3600", "3") // denied
			c.do(t, "CL.THROTTLE", "alice", "4", "0", "3600", "3") // invalid
			c.do(t, "TTL", "alice")
			c.do(t, "DEL", "alice")
			n := s.engine.RuleStats()[0]
			got := [...]uint64{n.Allowed(), n.AllowedUnits(), n.Denied.Load(), n.DeniedUnits.Load(), n.Shadowed.Load(), n.Errors.Load()}
			if want := [...]uint64{2, 3, 1, 3, 0, 0}; got != want {
				t.Errorf("allowed, their units, denied, their units, shadowed, errors: got %v, want %v", got, want)
			}
		})
	}
}

func TestThrottleShadowNeverDenies(t *testing.T) {
	for name, store := range map[string]penstock.Store{
		"memory": newFakeClock().memory(), "batched store": &countingStore{Store: newFakeClock().memory()},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, store, nil, &engine.Options{Shadow: true}, nil)
			c := newFakeClient(s)
			for range 3 {
				if got := c.do(t, "CL.THROTTLE", "alice", "0", "1", "3600"); got != "*5 :0 :1 :0 :-1 :3600" {
					t.Errorf("in shadow: got %s", got)
				}
			}
			n := s.engine.RuleStats()[0]
			if a, s := n.Allowed(), n.Shadowed.Load(); a != 1 || s != 2 {
				t.Errorf("counted %d allowed and %d shadowed, want 1 and 2", a, s)
			}
		})
	}
}
