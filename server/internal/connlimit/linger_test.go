package connlimit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestLingerTimeIsPartOfWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for left, want := range map[time.Duration]time.Duration{
			time.Minute: 1500 * time.Millisecond, 10 * time.Second: minLinger, time.Second: minLinger,
			200 * time.Millisecond: 50 * time.Millisecond, 0: 0, -time.Second: 0,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			defer cancel()
			if got := LingerTime(ctx); got != want {
				t.Errorf("%v before the end: got %v, want %v", left, got, want)
			}
		}
		if got := LingerTime(t.Context()); got != minLinger {
			t.Errorf("without an end: got %v, want %v", got, minLinger)
		}
	})
}
