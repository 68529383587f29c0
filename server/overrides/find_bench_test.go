package overrides

import (
	"fmt"
	"testing"
)

// BenchmarkFind looks up keys without an override.
func BenchmarkFind(b *testing.B) {
	for name, pattern := range map[string]string{"exact": "k=10.%d.%d.%d", "networks": "k=10.%d.%d.%d/32", "prefixes": "k=tenant-%d.%d.%d*"} {
		for _, n := range []int{100, MaxOverrides} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				all := make([]Override, n)
				for i := range all {
					all[i] = ban(fmt.Sprintf(pattern, i>>16, i>>8&255, i&255))
				}
				x := newSet(b, all...).Index("r")
				keys := make([]string, 10_000)
				for i := range keys {
					keys[i] = fmt.Sprintf("k=203.%d.%d.9", i>>8, i&255)
				}
				i := 0
				for b.Loop() {
					if e, _ := x.Find(keys[i%len(keys)]); e != nil {
						b.Fatal("found")
					}
					i++
				}
			})
		}
	}
}

// BenchmarkPut sets one override among many, whose number must not matter.
func BenchmarkPut(b *testing.B) {
	for _, n := range []int{100, MaxOverrides / 2} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, err := Open(nil)
			if err != nil {
				b.Fatal(err)
			}
			all := make([]Override, n)
			for i := range all {
				all[i] = Override{Rule: "r", Key: fmt.Sprint("k=", i), Limit: banText}
			}
			if err := s.Put(b.Context(), all); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Put(b.Context(), all[:1]); err != nil {
					b.Fatal(err)
				}
			}
			if got := s.Count(Banned); got != int64(n) {
				b.Errorf("%d overrides, want %d", got, n)
			}
		})
	}
}
