package slab

import (
	"testing"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/quota"
	"pgregory.net/rapid"
)

// Blocks never overlap, keep their contents and are zeroed when reused, and all
// bytes are released with the last block.
func TestSlabBlocksDoNotOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := quota.New(1<<20, nil)
		s := &Slab{}
		s.SetQuota(bytes)
		written := map[Block]int64{}
		var order []Block
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, 12_000)).Draw(t, "words")
				b := s.Alloc(n)
				if b == 0 {
					t.Skip("no room")
				}
				words := s.Words(b)
				if len(words) < n {
					t.Fatalf("asked for %d words, got %d", n, len(words))
				}
				mark := int64(len(order) + 1)
				for i := range words {
					if words[i] != 0 {
						t.Fatalf("word %d of a new block is %d", i, words[i])
					}
					words[i] = mark
				}
				written[b] = mark
				order = append(order, b)
			},
			"free": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip("nothing to free")
				}
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				s.Free(order[i])
				delete(written, order[i])
				order = append(order[:i], order[i+1:]...)
			},
			"": func(t *rapid.T) {
				for b, mark := range written {
					for i, word := range s.Words(b) {
						if word != mark {
							t.Fatalf("word %d of block %x is %d, want %d", i, b, word, mark)
						}
					}
				}
				if bytes.Used() > 1<<20 || (len(order) == 0) != (bytes.Used() == 0) {
					t.Fatalf("%d blocks hold %d bytes", len(order), bytes.Used())
				}
			},
		})
	})
}

func TestSizeClassFitsWithinAnEighth(t *testing.T) {
	for n := 1; n <= 12_000; n++ {
		class := sizeClass(n)
		size := classSize(class)
		if size < n || (n > 8 && (size-n)*8 > n) {
			t.Fatalf("%d words get a block of %d", n, size)
		}
		if class > 0 && n > 8 && classSize(class-1) >= n {
			t.Fatalf("%d words get class %d, but class %d would do", n, class, class-1)
		}
		if class >= classes {
			t.Fatalf("%d words get class %d of %d", n, class, classes)
		}
	}
}
