package overload

import (
	"sync/atomic"
	"testing"
)

// BenchmarkGate compares a call with its floor: one word and two clock readings.
func BenchmarkGate(b *testing.B) {
	g := NewGate(nil)
	b.Run("floor", func(b *testing.B) {
		var word atomic.Uint64
		var sum int64
		for b.Loop() {
			start := g.clock.Now()
			for {
				w := word.Load()
				if word.CompareAndSwap(w, w+1) {
					break
				}
			}
			word.Add(^uint64(0))
			sum += g.clock.Now() - start
		}
	})
	b.Run("gate", func(b *testing.B) {
		ctx := b.Context()
		b.ReportAllocs()
		for b.Loop() {
			pass, err := g.Enter(ctx, Normal)
			if err != nil {
				b.Fatal(err)
			}
			pass.Leave(Success)
		}
	})
}
