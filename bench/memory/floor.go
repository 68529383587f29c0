package main

import (
	"sync/atomic"
	"time"
)

// The floor is the least that a token bucket can do: read a monotonic clock once and
// swap one word. It has no keys and no table, and only returns yes or no. Every ratio
// "to the floor" is to this, measured in the same rounds.
type floor struct {
	base            time.Time
	every, capacity int64
	word            atomic.Int64
}

// newFloor returns a floor that denies every call after the first for the limit once,
// and no call otherwise: it counts the calls of all keys in one word, so it needs the
// limit of a single key.
func newFloor(p benchLimit) *floor {
	if p != once {
		p = ample(1)
	}
	return &floor{base: time.Now(), every: int64(p.every), capacity: int64(p.window())}
}

func (f *floor) take(string) (bool, error) { return f.allow(), nil }

func (f *floor) allow() bool {
	now := int64(time.Since(f.base))
	for {
		full := f.word.Load()
		next := max(full, now) + f.every
		if next-now > f.capacity {
			return false
		}
		if f.word.CompareAndSwap(full, next) {
			return true
		}
	}
}

// run reads no keys: the floor has none.
func (f *floor) run(_ *walk, calls int) (t counts) {
	for range calls {
		if !f.allow() {
			t.denied++
		}
	}
	t.calls = calls
	return t
}
