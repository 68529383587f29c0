package hashtable

import (
	"testing"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

// A table finds its entries, drops only expired ones, and never reports a first
// expiry that is too late.
func TestTableMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := &Table{width: 3}
		now := int64(0)
		model := map[uint64]int64{} // when each entry expires
		hashes := rapid.Uint64Range(1, 60)
		dropped := func(slot []uint64) {
			if model[slot[0]] > now {
				t.Fatalf("at %d, %d was dropped, which expires at %d", now, slot[0], model[slot[0]])
			}
			delete(model, slot[0])
		}
		write := func(at, hash uint64, expiry int64) {
			tab.words[at+1], tab.words[at+2] = uint64(expiry), hash*7
			tab.NoteExpiry(expiry)
			model[hash] = expiry
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				hash := hashes.Draw(t, "hash")
				if _, ok := tab.Find(hash); ok {
					t.Skip("present")
				}
				if tab.Crowded() {
					tab.Grow(now, dropped)
				}
				write(tab.Insert(hash), hash, now+rapid.Int64Range(0, 100).Draw(t, "for"))
			},
			"reuse": func(t *rapid.T) {
				hash := hashes.Draw(t, "hash")
				if _, ok := tab.Find(hash); ok {
					t.Skip("present")
				}
				at, ok := tab.Reusable(hash, now)
				if !ok {
					t.Skip("nothing to reuse")
				}
				dropped(tab.words[at : at+3])
				tab.words[at] = hash
				write(at, hash, now+1)
			},
			"purge":   func(*rapid.T) { tab.Purge(now, dropped) },
			"rebuild": func(*rapid.T) { tab.rebuild(now, dropped) },
			"wait":    func(t *rapid.T) { now += rapid.Int64Range(0, 2*purgeEvery).Draw(t, "for") },
			"": func(t *rapid.T) {
				if tab.Len() != len(model) {
					t.Fatalf("%d entries, want %d", tab.Len(), len(model))
				}
				for hash, expiry := range model {
					at, ok := tab.Find(hash)
					if !ok || tab.expiry(at) != expiry || tab.words[at+2] != hash*7 {
						t.Fatalf("%d is not as it was written", hash)
					}
					if expiry < tab.FirstExpiry() {
						t.Fatalf("%d expires at %d, before the first expiry, %d", hash, expiry, tab.FirstExpiry())
					}
				}
			},
		})
	})
}
