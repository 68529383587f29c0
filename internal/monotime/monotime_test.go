package monotime

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestClockNowAdvancesWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(nil)
		before := c.Now()
		time.Sleep(3 * time.Second)
		if got := c.Now() - before; before != 1 || got != int64(3*time.Second) {
			t.Errorf("began at %d and advanced by %v, want 1 and 3s", before, time.Duration(got))
		}
	})
}

func TestClockNowIsNeverZero(t *testing.T) {
	for _, at := range []time.Time{time.Unix(0, 0), time.Unix(-5, 0), {}} {
		if c := New(func() time.Time { return at }); c.Now() < 1 {
			t.Errorf("at %v: %d, want at least 1", at, c.Now())
		}
	}
	at := time.Unix(1, 234)
	if c := New(func() time.Time { return at }); c.Now() != at.UnixNano() {
		t.Errorf("got %d, want %d", c.Now(), at.UnixNano())
	}
}
