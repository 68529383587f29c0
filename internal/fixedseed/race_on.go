//go:build race

package fixedseed

const raceEnabled = true
