package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// maxTimeouts is how many timeouts a call may take.
const maxTimeouts = 20

// A slotClient is a client on which each call takes a while, whatever its context says, once it is open.
type slotClient struct {
	appClient
	open  chan struct{}
	takes atomic.Int64 // nanoseconds
	keys  sync.Map     // how often each was sent, as *atomic.Int64
	sent  atomic.Int64
	most  atomic.Int64 // keys of one call
}

func (c *slotClient) Do(ctx context.Context, calls []redisstore.Call) {
	if isProbe(calls) {
		c.appClient.Do(ctx, calls)
		return
	}
	c.sent.Add(1)
	for i := range calls {
		c.most.Store(max(c.most.Load(), int64(len(calls[i].Keys))))
		for _, key := range calls[i].Keys {
			n, _ := c.keys.LoadOrStore(key, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		}
	}
	<-c.open
	<-time.After(time.Duration(c.takes.Load()))
	c.appClient.Do(context.WithoutCancel(ctx), calls)
}

func openSlotClient(t *testing.T, o redisstore.Options) (*redisstore.Store, *slotClient) {
	t.Helper()
	client := &slotClient{appClient: newAppClient(t, liveServer), open: make(chan struct{})}
	o.Prefix = newPrefix()
	store, err := redisstore.New(client, &o)
	if err != nil {
		t.Fatal(err)
	}
	return store, client
}

// A beganContext tells that the time of a call has begun: the store has asked for its deadline.
type beganContext struct {
	context.Context
	tell func()
}

func (c beganContext) Deadline() (time.Time, bool) {
	c.tell()
	return c.Context.Deadline()
}

// A call that waits for others of its process ends after 20 timeouts. Each of the others takes half of one, so that
// at most 40 and one that was about to be sent come before it, however fast the machine is.
func TestCallsWaitForAtMostTwentyTimeouts(t *testing.T) {
	t.Parallel()
	const timeout, callers = 10 * time.Millisecond, 100
	store, client := openSlotClient(t, redisstore.Options{Timeout: timeout, MaxCalls: 1})
	client.takes.Store(int64(timeout / 2))
	var began, decided, ended atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			id := fmt.Sprint(i) // for a TakeAll under IDs shares no script
			rs := []penstock.Request{{Key: "item", Limit: penstock.PerHour(10), Cost: 1, ID: id}, {Key: id, Limit: penstock.PerHour(10), Cost: 1, ID: id}}
			tell := sync.OnceFunc(func() { began.Add(1) }) // a call that ends asks again
			switch err := store.TakeAll(beganContext{context.Background(), tell}, rs, make([]penstock.Decision, 2)); {
			case err == nil:
				decided.Add(1)
			case errors.Is(err, penstock.ErrBusy), errors.Is(err, penstock.ErrUnavailable): // a machine may stall
				ended.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	waitFor(t, "all calls have begun", func() bool { return began.Load() >= callers })
	close(client.open)
	wg.Wait()
	if n := client.sent.Load(); n > 2*maxTimeouts+2 || decided.Load()+ended.Load() != callers || ended.Load() < callers-n {
		t.Errorf("%d of %d calls were sent within %d timeouts, of which each takes half of one: %d decided, %d not",
			n, callers, maxTimeouts, decided.Load(), ended.Load())
	}
}

// What must be sent again, because of another key of its script, is not sent after 20 timeouts.
func TestCallIsNotSentAgainAfterTwentyTimeouts(t *testing.T) {
	t.Parallel()
	const timeout, callers = 5 * time.Millisecond, 20
	limit := penstock.PerHour(10)
	for name, take := range map[string]func(store *redisstore.Store, key string) error{
		"Take": func(store *redisstore.Store, key string) error {
			_, err := store.Take(context.Background(), penstock.Request{Key: key, Limit: limit, Cost: 1})
			return err
		},
		"TakeEach": func(store *redisstore.Store, key string) error {
			rs := []penstock.Request{{Key: key, Limit: limit, Cost: 1}, {Key: key + "b", Limit: limit, Cost: 1}}
			return store.TakeEach(context.Background(), rs, make([]penstock.Decision, 2))
		},
	} {
		store, client := openSlotClient(t, redisstore.Options{Timeout: timeout})
		close(client.open)
		waitFor(t, "calls share a script, which Redis knows", func() bool {
			var wg sync.WaitGroup
			var decided atomic.Int64
			for i := range callers {
				wg.Go(func() {
					if take(store, fmt.Sprint(i)) == nil {
						decided.Add(1)
					}
				})
			}
			wg.Wait()
			return client.most.Load() > 2 && decided.Load() == callers
		})
		client.takes.Store(int64((maxTimeouts + 5) * timeout))
		for key := range client.keys.Range { // none of them is a limit's any more
			mustCommand(t, liveServer, "SET", key.(string), "foreign", "EX", "1000")
		}
		client.keys.Clear()
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				if err := take(store, fmt.Sprint(i)); err == nil {
					t.Errorf("%s: a key with a foreign value was decided", name)
				}
			})
		}
		wg.Wait()
		for key, n := range client.keys.Range {
			if n := n.(*atomic.Int64).Load(); n != 1 {
				t.Errorf("%s: key %v was sent %d times, the last after more than %d timeouts", name, key, n, maxTimeouts)
			}
		}
	}
}

// Callers that leave a batch before it is sent are not charged, also those that leave before their deadline to have
// time to do without it (Options.EndEarly).
func TestEarlyLeaversOfABatchAreNotCharged(t *testing.T) {
	t.Parallel()
	store, client := openSlotClient(t, redisstore.Options{Timeout: longTimeout, MaxCalls: 1, EndEarly: true})
	first := make(chan error)
	go func() {
		_, err := store.Take(context.Background(), penstock.Request{Key: "first", Limit: penstock.PerHour(10), Cost: 1})
		first <- err
	}()
	waitFor(t, "the only slot is taken", func() bool { return client.sent.Load() == 1 })
	store.EndAfter(50 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	limit := penstock.PerHour(20)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if _, err := store.Take(ctx, penstock.Request{Key: fmt.Sprint(i), Limit: limit, Cost: 1}); !errors.Is(err, penstock.ErrUnavailable) {
				t.Errorf("caller %d: got %v, want ErrUnavailable", i, err)
			}
		})
	}
	wg.Wait()
	close(client.open)
	if err := <-first; err != nil {
		t.Error(err)
	}
	waitFor(t, "no batch waits", func() bool { return store.InFlight() == 0 })
	for i := range 50 {
		d, err := store.Take(t.Context(), penstock.Request{Key: fmt.Sprint(i), Limit: limit})
		if err != nil || d.Remaining != 20 {
			t.Errorf("caller %d left: %v, %v, want that nothing is charged", i, d, err)
		}
	}
}
