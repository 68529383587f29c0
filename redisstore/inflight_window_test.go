package redisstore

import (
	"testing"
	"time"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

// Whatever the answers tell, no slot is lost or held twice, and there are always some.
func TestCallWindowKeepsItsSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 100).Draw(t, "most")
		l := newInflightLimiter(most, 50*time.Millisecond, time.Second)
		w, held, now := l.window, 0, time.Unix(0, 0)
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(*rapid.T) {
				select {
				case w.slots <- struct{}{}:
					held++
				default:
				}
			},
			"free": func(t *rapid.T) {
				if held == 0 {
					t.Skip("none is held")
				}
				w.free()
				held--
			},
			"note": func(t *rapid.T) {
				took := time.Duration(rapid.Int64Range(0, int64(100*time.Millisecond)).Draw(t, "took"))
				silent := time.Duration(rapid.Int64Range(0, int64(took)).Draw(t, "silent"))
				now = now.Add(took)
				w.note(now.Add(-took), now, silent, rapid.IntRange(0, fullBatch).Draw(t, "held"))
			},
			"": func(t *rapid.T) {
				if got := l.held(); got != held {
					t.Fatalf("%d slots are held, want %d", got, held)
				}
				if w.size < min(minWindow, most) || w.size > most {
					t.Fatalf("a window of %d, want from %d to %d", w.size, minWindow, most)
				}
				if free := cap(w.slots) - len(w.slots); free != max(w.size-held, 0) {
					t.Fatalf("%d slots are free while %d of %d are held", free, held, w.size)
				}
			},
		})
	})
}

// A full window doubles with each turn that is short beyond the base round-trip time, however long that is, and becomes as small as a long one
// needs. One that is not full stays.
func TestCallWindowFollowsTurns(t *testing.T) {
	const rtt = 20 * time.Millisecond
	w := newInflightLimiter(2048, 50*time.Millisecond, time.Second).window
	w.noteRTT(rtt)
	now := time.Unix(0, 0)
	turn := func(lasts time.Duration, calls int) {
		sent := now
		for range calls {
			w.slots <- struct{}{}
		}
		for i := range calls {
			if now = sent.Add(rtt + lasts + time.Duration(i)); i == 0 {
				w.note(sent, now, rtt+lasts, 1)
			} else {
				w.note(sent, now, 1, 1)
			}
		}
		for range calls {
			w.free()
		}
		now = now.Add(time.Microsecond)
	}
	want := func(size int) {
		t.Helper()
		if w.size != size {
			t.Errorf("a window of %d, want %d", w.size, size)
		}
	}
	turn(time.Millisecond, minWindow-1)
	want(minWindow)
	for size := 2 * minWindow; size <= 2048; size *= 2 {
		before := w.size
		turn(time.Millisecond, before)
		if w.size <= before || w.size > size {
			t.Errorf("a window of %d after %d, want more, and at most %d", w.size, before, size)
		}
	}
	for w.size < 2048 {
		turn(time.Millisecond, w.size)
	}
	turn(4*time.Millisecond, w.size)
	want(2048)
	turn(25*time.Millisecond, w.size)
	if w.size < 500 || w.size > 550 { // baseRTT is not known exactly
		t.Errorf("a window of %d after a turn four times too long, want a quarter of 2048", w.size)
	}
	turn(time.Second, w.size)
	want(minWindow)
	for range 2048 { // the network has become slower
		turn(25*time.Millisecond, w.size)
	}
	if w.size < 2*minWindow {
		t.Errorf("a window of %d after a thousand turns that last longer whatever its size, want more", w.size)
	}
}

// Late answers to what was sent before the window became smaller do not make it smaller again.
func TestCallWindowShrinksOnceATurn(t *testing.T) {
	w := newInflightLimiter(64, 50*time.Millisecond, time.Second).window
	w.noteRTT(time.Microsecond)
	w.resize(64)
	for range 64 {
		w.slots <- struct{}{}
	}
	sent := time.Unix(0, 0)
	for i := range 3 {
		w.note(sent, sent.Add(time.Duration(10+i)*time.Millisecond), 10*time.Millisecond, 1)
	}
	if w.size < 38 || w.size > 42 {
		t.Errorf("a window of %d after three answers of one turn, want 40", w.size)
	}
}
