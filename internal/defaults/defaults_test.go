package defaults

import "testing"

func TestOrTakesTheDefaultUnlessTheSettingIsAboveZero(t *testing.T) {
	for setting, want := range map[int]int{-1: 7, 0: 7, 1: 1} {
		if got := Or(setting, 7); got != want {
			t.Errorf("%d: got %d, want %d", setting, got, want)
		}
	}
}
