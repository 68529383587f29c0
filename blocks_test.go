package penstock

import (
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// Runs never overlap, keep what is written to them, come back zeroed, and all
// bytes are given back with the last run.
func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var held atomic.Int64
		b := &blocks{held: &held, most: 1 << 20}
		written := map[run]int64{}
		var order []run
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, 12_000)).Draw(t, "words")
				r := b.alloc(n)
				if r == 0 {
					t.Skip("no room")
				}
				words := b.words(r)
				if len(words) < n {
					t.Fatalf("asked for %d words, got %d", n, len(words))
				}
				mark := int64(len(order) + 1)
				for i := range words {
					if words[i] != 0 {
						t.Fatalf("word %d of a new run is %d", i, words[i])
					}
					words[i] = mark
				}
				written[r] = mark
				order = append(order, r)
			},
			"give": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip("nothing to give")
				}
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				b.free(order[i])
				delete(written, order[i])
				order = append(order[:i], order[i+1:]...)
			},
			"": func(t *rapid.T) {
				for r, mark := range written {
					for i, word := range b.words(r) {
						if word != mark {
							t.Fatalf("word %d of run %x is %d, want %d", i, r, word, mark)
						}
					}
				}
				if held.Load() > 1<<20 || (len(order) == 0) != (held.Load() == 0) {
					t.Fatalf("%d runs hold %d bytes", len(order), held.Load())
				}
			},
		})
	})
}

func TestSizeClasses(t *testing.T) {
	for n := 1; n <= 12_000; n++ {
		class := sizeClass(n)
		size := classSize(class)
		if size < n || (n > 8 && (size-n)*8 > n) {
			t.Fatalf("%d words get a run of %d", n, size)
		}
		if class > 0 && n > 8 && classSize(class-1) >= n {
			t.Fatalf("%d words get class %d, but class %d would do", n, class, class-1)
		}
		if class >= sizes {
			t.Fatalf("%d words get class %d of %d", n, class, sizes)
		}
	}
}
