package redisstore

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
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
