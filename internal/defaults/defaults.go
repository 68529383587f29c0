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
