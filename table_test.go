package penstock

import (
	"testing"

	"pgregory.net/rapid"
)

// A table finds what is in it, forgets only what is as good as new, and never
// names a first expiry that is too late.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := &table{width: 3}
		now := int64(0)
		model := map[uint64]int64{} // until when each entry matters
		hashes := rapid.Uint64Range(1, 60)
		dropped := func(slot []uint64) {
			if model[slot[0]] > now {
				t.Fatalf("at %d, %d was dropped, which matters until %d", now, slot[0], model[slot[0]])
			}
			delete(model, slot[0])
		}
		write := func(at, hash uint64, until int64) {
			tab.words[at+1], tab.words[at+2] = uint64(until), hash*7
			tab.firstStale = min(tab.firstStale, until)
			model[hash] = until
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				hash := hashes.Draw(t, "hash")
				if _, ok := tab.find(hash); ok {
					t.Skip("there already")
				}
				if tab.crowded() {
					tab.relieve(now, dropped)
				}
				write(tab.add(hash), hash, now+rapid.Int64Range(0, 100).Draw(t, "for"))
			},
			"take over": func(t *rapid.T) {
				hash := hashes.Draw(t, "hash")
				if _, ok := tab.find(hash); ok {
					t.Skip("there already")
				}
				at, ok := tab.stale(hash, now)
				if !ok {
					t.Skip("nothing to take over")
				}
				dropped(tab.words[at : at+3])
				tab.words[at] = hash
				write(at, hash, now+1)
			},
			"rebuild": func(*rapid.T) { tab.rebuild(now, dropped) },
			"wait":    func(t *rapid.T) { now += rapid.Int64Range(0, 2*purgeEvery).Draw(t, "for") },
			"": func(t *rapid.T) {
				if tab.used != len(model) {
					t.Fatalf("%d entries, want %d", tab.used, len(model))
				}
				for hash, until := range model {
					at, ok := tab.find(hash)
					if !ok || tab.until(at) != until || tab.words[at+2] != hash*7 {
						t.Fatalf("%d is not as it was written", hash)
					}
					if until < tab.firstStale {
						t.Fatalf("%d matters until %d, but the first is said to be %d", hash, until, tab.firstStale)
					}
				}
			},
		})
	})
}

// The sign bit of an instant belongs to the token bucket, not to the instant.
func TestTableReadsInstantsWithoutTheirSign(t *testing.T) {
	tab := &table{width: 2}
	tab.rebuild(0, nil)
	at := tab.add(5)
	tab.words[at+1] = 100 | signBit
	if _, ok := tab.stale(5, 99); ok || tab.until(at) != 100 {
		t.Errorf("a reserved bucket is as good as new at %d, want 100", tab.until(at))
	}
	if n := tab.rebuild(100, func([]uint64) {}); n != 1 {
		t.Errorf("at 100, %d entries were dropped, want 1", n)
	}
}
