package defaults

import (
	"math"
	"testing"
	"time"
)

func TestOrTakesTheDefaultUnlessTheSettingIsAboveZero(t *testing.T) {
	for setting, want := range map[int]int{-1: 7, 0: 7, 1: 1} {
		if got := Or(setting, 7); got != want {
			t.Errorf("%d: got %d, want %d", setting, got, want)
		}
	}
}

func TestDurationCanBeAddedToATime(t *testing.T) {
	for setting, want := range map[time.Duration]time.Duration{
		math.MinInt64: time.Second, 0: time.Second, 1: 1, time.Hour: time.Hour, math.MaxInt64: 365 * 24 * time.Hour,
	} {
		if got := Duration(setting, time.Second); got != want {
			t.Errorf("%d: got %v, want %v", setting, got, want)
		}
	}
}
