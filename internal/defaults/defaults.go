// Package defaults fills in settings that were left out.
package defaults

import "time"

// Or returns a setting that is above zero, or else its default.
func Or[T int | int64 | float64 | time.Duration](setting, byDefault T) T {
	if setting > 0 {
		return setting
	}
	return byDefault
}

// longest is a setting of a time that means for ever. A time of the clock and several of it can be added.
const longest = 365 * 24 * time.Hour

// Duration is Or for a time that may be meant to be endless. It returns a year at most.
func Duration(setting, byDefault time.Duration) time.Duration {
	return min(Or(setting, byDefault), longest)
}
