package respapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/engine"
)

// A countingStore store counts how often it is asked.
type countingStore struct {
	penstock.Store
	takes, batches int
}

func (s *countingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	s.takes++
	return s.Store.Take(ctx, r)
}

func (s *countingStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	s.batches++
	return penstock.TakeEach(ctx, s.Store, rs, ds)
}

// doAll gives a connection commands all at once, and returns the replies.
func (c *conn) doAll(t *testing.T, commands ...string) []string {
	t.Helper()
	c.in = []byte(strings.Join(commands, ""))
	c.start, c.end = 0, len(c.in)
	c.executeBuffered()
	nc := c.net.(*fakeConn)
	nc.sent.Write(c.out.buf) // behind what was sent on the way
	c.out.buf = c.out.buf[:0]
	var all []string
	for r := takeSent(nc); ; {
		text, err := readReply(r)
		if err != nil {
			t.Fatal(err)
		}
		if text == "closed" {
			return all
		}
		all = append(all, text)
	}
}

// takeSent returns what was sent since it was last called.
func takeSent(nc *fakeConn) *bufio.Reader {
	text := bytes.Clone(nc.sent.Bytes())
	nc.sent.Reset()
	return bufio.NewReader(bytes.NewReader(text))
}

func TestPipelineIsOneBatch(t *testing.T) {
	heldRedis.Clock.Set(newFakeClock().now())
	store := &countingStore{Store: newRedisStore(t, heldRedis)}
	c := newFakeClient(newServer(t, store, nil, nil, nil))
	var commands, want []string
	for i := range maxBatch {
		commands = append(commands, encode("CL.THROTTLE", "alice", "99", "1", "60"))
		limited, retry := 0, -1
		if i >= 100 {
			limited, retry = 1, 60
		}
		want = append(want, fmt.Sprintf("*5 :%d :100 :%d :%d :%d", limited, max(99-i, 0), retry, min(i+1, 100)*60))
	}
	got := c.doAll(t, commands...)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if store.takes != 0 || store.batches != 1 {
		t.Errorf("%d takes and %d trips, want one trip for all", store.takes, store.batches)
	}

	// What is answered in between waits for those before it.
	store.batches = 0
	c.doAll(t, append(append(commands, encode("PING")), commands[:3]...)...)
	if store.batches != 2 {
		t.Errorf("%d trips around a PING, want 2", store.batches)
	}
}

// Those that were decided before the store failed are answered, and nothing else is.
func TestPipelinePartialStoreFailure(t *testing.T) {
	asked := 0
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if asked++; asked == 3 {
			return penstock.Decision{}, fmt.Errorf("%w: out\r\nof order", penstock.ErrUnavailable)
		}
		return penstock.AllowAll.Take(ctx, r)
	})
	d := newServer(t, store, nil, nil, nil)
	c := newFakeClient(d)
	take := encode("CL.THROTTLE", "alice", "4", "1", "60")
	got := c.doAll(t, take, take, take, take, encode("PING"))
	allowed, failed := "*5 :0 :5 :5 :-1 :0", "-Cell error: Store error: request 2: store unavailable: out  of order"
	want := []string{allowed, allowed, failed, failed, "+PONG"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	counts := d.engine.RuleCounters()[0]
	if a, e := counts.Allowed.Load(), counts.Errors.Load(); a != 2 || e != 2 {
		t.Errorf("counted %d allowed and %d errors, want 2 and 2", a, e)
	}
}

func TestStoreErrorKeepsConnectionUsable(t *testing.T) {
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	c := dial(t, startServer(t, newServer(t, store, nil, nil, nil)))
	c.want("*5 :0 :16 :15 :-1 :2", "CL.THROTTLE", "k", "15", "30", "60")
	server.Kill()
	if got := c.do("CL.THROTTLE", "k", "15", "30", "60"); !strings.HasPrefix(got, "-Cell error: Store error: ") ||
		!strings.Contains(got, penstock.ErrUnavailable.Error()) {
		t.Errorf("without Redis: got %s", got)
	}
	if got := c.do("TTL", "k"); !strings.HasPrefix(got, "-ERR ") || !strings.Contains(got, penstock.ErrUnavailable.Error()) {
		t.Errorf("without Redis, TTL: got %s", got)
	}
	c.want("+PONG", "PING")
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return c.do("CL.THROTTLE", "k", "15", "30", "60") == "*5 :0 :16 :15 :-1 :2" })
}

func TestThrottleCounters(t *testing.T) {
	for name, store := range map[string]penstock.Store{
		"memory": penstock.NewMemory(nil), "another store": &countingStore{Store: penstock.NewMemory(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			d := newServer(t, store, nil, nil, nil)
			c := newFakeClient(d)
			c.do(t, "CL.THROTTLE", "alice", "4", "1", "3600", "2") // 2 of 5
			c.do(t, "CL.THROTTLE", "alice", "4", "1", "3600", "0") // a look
			c.do(t, "CL.THROTTLE", "alice", "4", "1", "3600")      // 3 of 5
			c.do(t, "CL.THROTTLE", "alice", "4", "1", "3600", "3") // too many
			c.do(t, "CL.THROTTLE", "alice", "4", "0", "3600", "3") // none
			c.do(t, "TTL", "alice")
			c.do(t, "DEL", "alice")
			n := d.engine.RuleCounters()[0]
			got := [...]uint64{n.Allowed.Load(), n.AllowedUnits.Load(), n.Denied.Load(), n.DeniedUnits.Load(), n.Shadowed.Load(), n.Errors.Load()}
			if want := [...]uint64{2, 3, 1, 3, 0, 0}; got != want {
				t.Errorf("allowed, their units, denied, their units, shadowed, errors: got %v, want %v", got, want)
			}
		})
	}
}

func TestThrottleShadow(t *testing.T) {
	for name, store := range map[string]penstock.Store{
		"memory": penstock.NewMemory(nil), "another store": &countingStore{Store: penstock.NewMemory(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			d := newServer(t, store, nil, &engine.Options{Shadow: true}, nil)
			c := newFakeClient(d)
			for range 3 {
				if got := c.do(t, "CL.THROTTLE", "alice", "0", "1", "3600"); got != "*5 :0 :1 :0 :-1 :3600" {
					t.Errorf("in shadow: got %s", got)
				}
			}
			n := d.engine.RuleCounters()[0]
			if a, s := n.Allowed.Load(), n.Shadowed.Load(); a != 1 || s != 2 {
				t.Errorf("counted %d allowed and %d shadowed, want 1 and 2", a, s)
			}
		})
	}
}

// A look leaves what is in Redis as it is, whichever limit the key was taken under.
func TestKeyCommandsWriteNothing(t *testing.T) {
	clock := newFakeClock()
	heldRedis.Clock.Set(clock.now())
	c := newFakeClient(newServer(t, newRedisStore(t, heldRedis), clock, nil, nil))
	c.do(t, "CL.THROTTLE", "short", "15", "7", "60")
	c.do(t, "CL.THROTTLE", "middle", "50", "1", "86400", "51") // 51 days
	c.do(t, "CL.THROTTLE", "long", "99", "7", "31536000", "100")
	dump := func() string {
		all, err := heldRedis.Command("EVAL", `
			local all = {}
			for _, key in ipairs(redis.call('KEYS', 'r`+fmt.Sprint(prefixes.Load())+`-*')) do
				all[#all + 1] = key .. ' ' .. redis.call('GET', key) .. ' ' .. redis.call('PTTL', key)
			end
			table.sort(all)
			return all`, "0")
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := dump()
	if strings.Count(before, "\n") != 2 {
		t.Fatalf("want three keys, got\n%s", before)
	}
	for _, key := range []string{"short", "middle", "long"} {
		for _, name := range []string{"GET", "TTL", "PTTL", "EXISTS", "TYPE"} {
			if got := c.do(t, name, key); got == ":0" || got == ":-2" || got == "$-1" || got == "+none" {
				t.Errorf("%s %s: got %s", name, key, got)
			}
		}
	}
	if after := dump(); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

func TestNewInvalidOptions(t *testing.T) {
	if _, err := New(nil, nil); err == nil {
		t.Error("a door to nobody")
	}
	for field, o := range map[string]Options{
		"IdleTimeout":    {IdleTimeout: -1},
		"CommandTimeout": {CommandTimeout: -1}, "WriteTimeout": {WriteTimeout: -1},
	} {
		_, err := New(engine.New(penstock.NewMemory(nil), nil), &o)
		if err == nil || !strings.Contains(err.Error(), "Options."+field+" -1ns") {
			t.Errorf("%+v: got %v, want an error that names %s", o, err, field)
		}
	}
}
