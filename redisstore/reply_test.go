package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"pgregory.net/rapid"
)

// extremeReplies are seeds for replies that Redis never sends.
var extremeReplies = [][]int64{
	{},
	{0},
	{-1},
	{math.MaxInt64},
	{math.MinInt64},
	{1, 2},
	{math.MaxInt64, math.MinInt64},
	{-1, 0, math.MaxInt64},
	{5, 1 << 62, 1 << 62},
	{0, 0, math.MinInt64},
	{1, 2, 3, 4},
	{math.MinInt64, math.MaxInt64, -1, -1},
	{1, 0, 5, math.MaxInt64, math.MaxInt64},
	{math.MaxInt64, math.MaxInt64, 1, 1, 1, 1},
}

func fuzzLimits() (limits []penstock.Limit) {
	for a := range penstock.SlidingLog + 1 {
		limits = append(limits, penstock.PerMinute(10).WithAlgorithm(a))
	}
	return append(limits,
		penstock.Limit{Algorithm: penstock.FixedWindow, Count: 10, Period: time.Hour, Align: penstock.AlignClock},
		penstock.Limit{Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignMonth, Zone: "Europe/Berlin"},
		penstock.Limit{Count: 10, Period: 300 * 24 * time.Hour})
}

// Any reply is decoded to a decision or an error, without a panic or an endless loop.
func FuzzDecodeReply(f *testing.F) {
	for _, numbers := range extremeReplies {
		var text []byte
		for _, n := range numbers {
			text = binary.BigEndian.AppendUint64(text, uint64(n))
		}
		f.Add(text)
	}
	limits := fuzzLimits()
	f.Fuzz(func(t *testing.T, text []byte) {
		var reply []int64
		for len(text) >= 8 && len(reply) < 10 {
			reply, text = append(reply, int64(binary.BigEndian.Uint64(text))), text[8:]
		}
		s := &Store{prefix: "p", timeout: time.Second, now: time.Now}
		for _, l := range limits {
			for _, r := range []penstock.Request{
				{Cost: 1},
				{Cost: 0},
				{Cost: -5},
				{Cost: 20},
				{Cost: 20, AtMost: true},
				{Cost: 3, ID: "x"},
				{Cost: -3, ID: "x"},
				{Cost: penstock.Reset},
				{Cost: 2, MaxDelay: time.Hour},
			} {
				r.Key, r.Limit = "k", l
				var q compiledRequest
				var c Call
				if err := s.compile(&q, &r, 0); err != nil {
					t.Fatal(err)
				}
				s.encodeArgs(&q, &c)
				c.Reply = append(c.Reply, reply...)
				if _, ok, err := s.decode(&q, &c); err != nil && !ok {
					t.Errorf("%s: an error reply that asks for a retry: %v", l, err)
				}
			}
		}
	})
}

// An oddClient answers each call with numbers that a test has drawn, but those by which a store learns what a server does
// with scripts.
type oddClient struct{ draw func() []int64 }

func (c *oddClient) Do(_ context.Context, calls []Call) {
	for i := range calls {
		if calls[i].Script.Name == "probe" {
			calls[i].Reply = append(calls[i].Reply, 1)
		} else {
			calls[i].Reply = append(calls[i].Reply, c.draw()...)
		}
	}
}

func (*oddClient) Info(context.Context) (map[string]string, error) { return nil, nil }
func (*oddClient) Sharded() bool                                   { return false }

// Replies of any length are decisions or errors, for one request and for many.
func TestStoreOddRepliesAreDecisionsOrErrors(t *testing.T) {
	limits := fuzzLimits()
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Int64Range(0, 1), rapid.Int64Range(-3, 12), rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64, 1 << 53, 1_700_000_000_000}))
		store, err := New(&oddClient{func() []int64 { return rapid.SliceOfN(number, 0, 8).Draw(t, "reply") }}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		for range 10 {
			checkOddReplies(t, store, limits)
		}
	})
}

// A step of several numbers does not come packed in one.
func TestStorePackedReplyOfPeeksIsUnexpected(t *testing.T) {
	store, err := New(&oddClient{func() []int64 { return []int64{0, 0, 5} }}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rs := []penstock.Request{{Key: "a", Limit: penstock.PerMinute(10)}, {Key: "a", Limit: penstock.PerMinute(10).WithAlgorithm(penstock.RollingWindow)}}
	for name, take := range map[string]func(context.Context, []penstock.Request, []penstock.Decision) error{"TakeEach": store.TakeEach, "TakeAll": store.TakeAll} {
		if err := take(context.Background(), rs, make([]penstock.Decision, 2)); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("%s: got %v, want %v", name, err, penstock.ErrUnavailable)
		}
	}
}

func checkOddReplies(t *rapid.T, store *Store, limits []penstock.Limit) {
	rs := make([]penstock.Request, rapid.IntRange(1, 4).Draw(t, "requests"))
	for i := range rs {
		rs[i] = penstock.Request{
			Key:   rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
			Limit: rapid.SampledFrom(limits).Draw(t, "limit"),
			Cost:  rapid.Int64Range(-3, 11).Draw(t, "cost"),
			ID:    rapid.SampledFrom([]string{"", "", "x"}).Draw(t, "ID"),
		}
		rs[i].Settle = rs[i].ID != "" && rs[i].Cost >= 0 && rapid.Bool().Draw(t, "settle")
	}
	ds := make([]penstock.Decision, len(rs))
	_, err := store.Take(context.Background(), rs[0])
	for name, err := range map[string]error{
		"Take":     err,
		"TakeEach": store.TakeEach(context.Background(), rs, ds),
		"TakeAll":  store.TakeAll(context.Background(), rs, ds),
	} {
		known := slices.ContainsFunc([]error{penstock.ErrUnavailable, penstock.ErrBadCost, penstock.ErrUnknownID},
			func(known error) bool { return errors.Is(err, known) })
		if err != nil && !known {
			t.Errorf("%s: %v, want %v", name, err, penstock.ErrUnavailable)
		}
	}
}
