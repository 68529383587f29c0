//go:build race

package overload

// raceDetector makes the simulation ten times as slow, and finds nothing in it: it
// has one goroutine.
const raceDetector = true
