package respapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/storetest"
)

// TestTakeStoreConformance runs the conformance tests of stores through PENSTOCK.TAKE,
// batches as pipelines. The store behind it decides directly what the command cannot
// express: invalid requests, which are errors in every store; keys above the API's maximum;
// a MaxDelay of other than whole milliseconds; and all-or-nothing takes.
func TestTakeStoreConformance(t *testing.T) {
	fewerChecks(t)
	requests := 0
	t.Run("memory", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
			store := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 10_000})
			return newTakeStore(t, store, &requests)
		})
	})
	t.Run("redis", func(t *testing.T) { // the way through the API is tested on memory
		storetest.RunRandom(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
			if err := clock.Follow(func(now time.Time) error { redisServer.Clock.Set(now); return nil }); err != nil {
				t.Fatal(err)
			}
			return newTakeStore(t, newRedisStore(t, redisServer), &requests)
		})
	})
	if requests < 1000 {
		t.Errorf("only %d requests went through the API", requests)
	}
}

// A takeStore takes through the API.
type takeStore struct {
	penstock.Store
	t        testing.TB
	requests *int
	conn     *conn
	mu       sync.Mutex
}

func newTakeStore(t testing.TB, store penstock.Store, requests *int) *takeStore {
	return &takeStore{t: t, requests: requests, Store: store, conn: newFakeClient(newServer(t, store, nil, nil, nil))}
}

func (s *takeStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if !isExpressible(&r) {
		r.Limit = requestlimits.Of(r.Limit)
		return s.Store.Take(ctx, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.requests++
	return parseTakeReply(s.conn.do(s.t, takeArgs(&r)...))
}

func (s *takeStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	clear(ds)
	if err := penstock.ValidateBatch(rs, ds, false); err != nil {
		return err
	}
	var commands strings.Builder
	for i := range rs {
		if !isExpressible(&rs[i]) {
			return penstock.TakeEach(ctx, s.Store, requestLimits(rs), ds)
		}
		commands.WriteString(encode(takeArgs(&rs[i])...))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.requests += len(rs)
	for i, reply := range s.conn.doAll(s.t, commands.String()) {
		var err error
		if ds[i], err = parseTakeReply(reply); err != nil {
			return &penstock.RequestError{Index: i, Err: err}
		}
	}
	return nil
}

func (s *takeStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return penstock.TakeAll(ctx, s.Store, requestLimits(rs), ds)
}

// requestLimits returns the requests under the limits that the API uses for them.
func requestLimits(rs []penstock.Request) []penstock.Request {
	all := slices.Clone(rs)
	for i := range all {
		all[i].Limit = requestlimits.Of(all[i].Limit)
	}
	return all
}

func isExpressible(r *penstock.Request) bool {
	return r.Validate() == nil && len(r.Key) <= maxKey && r.MaxDelay%time.Millisecond == 0 && r.Hold%time.Millisecond == 0
}

// takeArgs returns the command of a request.
func takeArgs(r *penstock.Request) []string {
	words := []string{"PENSTOCK.TAKE", "KEY", r.Key, "LIMIT", r.Limit.String()}
	if r.Settle {
		words[0] = "PENSTOCK.SETTLE"
	}
	if r.Hold > 0 {
		words = append(words, "HOLD", fmt.Sprint(r.Hold.Milliseconds()))
	}
	if r.Cost == penstock.Reset {
		words = append(words, "RESET")
	} else {
		words = append(words, "COST", fmt.Sprint(r.Cost))
	}
	if r.ID != "" {
		words = append(words, "ID", r.ID)
	}
	if r.AtMost {
		words = append(words, "ATMOST")
	}
	if r.Overdraw {
		words = append(words, "OVERDRAW")
	}
	if r.MaxDelay > 0 {
		words = append(words, "MAXDELAY", fmt.Sprint(r.MaxDelay.Milliseconds()))
	}
	if r.NewID {
		words = append(words, "NEWID")
	}
	if r.KeepFree > 0 {
		words = append(words, "KEEPFREE", fmt.Sprint(r.KeepFree))
	}
	return words
}

// parseTakeReply parses a reply in the form of readReply.
func parseTakeReply(text string) (d penstock.Decision, err error) {
	if strings.HasPrefix(text, "-UNKNOWNID ") {
		return d, penstock.ErrUnknownID
	}
	if strings.HasPrefix(text, "-UNAVAILABLE ") {
		return d, fmt.Errorf("%w: %s", penstock.ErrUnavailable, text)
	}
	words := strings.Fields(text)
	if words[0] != "*16" || words[15] != `"source"` || words[16] != `"store"` {
		return d, errors.New(text)
	}
	field := func(i int, name string) int64 {
		n, parseErr := strconv.ParseInt(strings.TrimPrefix(words[2*i+2], ":"), 10, 64)
		if words[2*i+1] != strconv.Quote(name) || parseErr != nil {
			err = fmt.Errorf("%s: want %s and an integer at %d", text, name, i)
		}
		return n
	}
	d.Allowed, d.Granted, d.Limit, d.Remaining = field(0, "allowed") == 1, field(1, "granted"), field(2, "limit"), field(3, "remaining")
	d.RetryAfter, d.ResetAfter, d.Delay = millis(field(4, "retry_after_ms")), millis(field(5, "reset_after_ms")), millis(field(6, "delay_ms"))
	return d, err
}

// millis returns a duration in milliseconds, and Never for -1.
func millis(n int64) time.Duration {
	if n == -1 {
		return penstock.Never
	}
	return time.Duration(n) * time.Millisecond
}
