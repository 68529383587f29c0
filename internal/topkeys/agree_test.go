package topkeys

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// An event is a number of decisions about a key that a tracker was told of.
type event struct {
	at            time.Time
	key           string
	asked, denied uint64
}

// A history is what a tracker was told.
type history struct {
	clock  *testClock
	tr     *Tracker
	source *Source
	events []event
	flood  bool // decisions were sampled, so that counts are estimates
}

// step lets time pass, and tells the tracker of decisions about one key, which are sampled in a flood.
func (h *history) step(t *rapid.T, keys int) {
	h.clock.advance(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 7 * time.Second, 59 * time.Second, time.Minute, 5 * time.Minute}).Draw(t, "pause"))
	e := event{at: h.clock.now, key: fmt.Sprint("k", rapid.IntRange(0, keys-1).Draw(t, "key")), asked: 1}
	if steps := rapid.SampledFrom([]uint32{0, 0, 0, 0, 0, 1, 7}).Draw(t, "mask of a flood"); steps > 0 {
		h.tr.allowed.mask.Store(steps)
		h.flood = true
	}
	switch kind := rapid.SampledFrom([]string{"allowed", "allowed", "denied", "shadowed", "report"}).Draw(t, "kind"); kind {
	case "report":
		e.denied = rapid.Uint64Range(0, 20).Draw(t, "denied")
		e.asked = e.denied + rapid.Uint64Range(0, 20).Draw(t, "allowed")
		h.tr.RecordReport(h.source, e.key, e.asked-e.denied, e.denied)
	default:
		outcome := map[string]Outcome{"allowed": Allowed, "denied": Denied, "shadowed": Shadowed}[kind]
		if outcome != Allowed {
			e.denied = 1
		}
		h.tr.Record(h.source, e.key, outcome, 1, 0)
	}
	h.events = append(h.events, e)
}

// truth returns how often each key has asked and was denied since a time.
func (h *history) truth(since time.Time) (asked, denied map[string]uint64) {
	asked, denied = map[string]uint64{}, map[string]uint64{}
	for _, e := range h.events {
		if !e.at.Before(since) {
			asked[e.key] += e.asked
			denied[e.key] += e.denied
		}
	}
	return asked, denied
}

// No key is ever said to have been denied more often than it asked, whenever denials begin, and both numbers are of
// what has happened since the one time that both lists tell.
func TestKeysAreDeniedAtMostAsOftenAsTheyAsked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newTestClock()
		h := &history{clock: clock, tr: clock.tracker(rapid.IntRange(1, 12).Draw(t, "counters"))}
		h.source = h.tr.NewSource("r")
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			h.step(t, 16)
			asked, denied := h.tr.Keys(nil)
			if !asked.Since.Equal(denied.Since) || denied.Total > asked.Total {
				t.Fatalf("%d asked since %s, %d denied since %s", asked.Total, asked.Since, denied.Total, denied.Since)
			}
			checkAgreement(t, asked, denied)
			if !h.flood {
				ofAsked, ofDenied := h.truth(asked.Since)
				checkBounds(t, asked, ofAsked)
				checkBounds(t, denied, ofDenied)
			}
			checkSeen(t, h.tr, asked, denied)
		}
	})
}

// checkAgreement fails if a key may have been denied more often than it asked.
func checkAgreement(t *rapid.T, asked, denied Summary) {
	ofAsked := asked.Finder()
	for _, d := range denied.Entries {
		if a := ofAsked(&d); d.Guaranteed() > a.Guaranteed() || d.Count > a.Count {
			t.Fatalf("%s: %d to %d asked, %d to %d denied", d.Key, a.Guaranteed(), a.Count, d.Guaranteed(), d.Count)
		}
	}
}

// checkSeen fails unless a key alone has the numbers that it has in the lists.
func checkSeen(t *rapid.T, tr *Tracker, asked, denied Summary) {
	ofDenied := denied.Finder()
	for i := range min(2, len(asked.Entries)) {
		e := &asked.Entries[i]
		seen := tr.Seen(e.Key)
		if len(seen) != 1 || *seen[0].Asked != *e || seen[0].Denied != nil && *seen[0].Denied != ofDenied(e) {
			t.Fatalf("%s: seen %+v, listed %+v", e.Key, seen, e)
		}
	}
}
