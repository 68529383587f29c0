//go:build race

package penstock_test

const raceEnabled = true
