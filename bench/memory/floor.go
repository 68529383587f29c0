package main

import (
	"sync/atomic"
	"time"
)

// The floor is the least that a token bucket can do: read a monotonic clock
// once and swap one word. It has no keys, no table, and answers yes or no. Every
// ratio "to the floor" is to this, measured in the same rounds.
type floor struct {
	base            time.Time
	every, capacity int64
	word            atomic.Int64
}

// newFloor returns a floor that denies every call after the first, for the
// policy once, and otherwise none: it counts the calls of all keys in one word,
// so it needs the room of the hottest.
func newFloor(p policy) *floor {
	if p != once {
		p = roomy(1)
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

// run reads no keys: the floor does not pay for them.
func (f *floor) run(_ *walk, calls int) (t tally) {
	for range calls {
		if !f.allow() {
			t.denied++
		}
	}
	t.calls = calls
	return t
}
