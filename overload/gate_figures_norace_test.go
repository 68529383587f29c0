//go:build !race

package overload

const raceDetector = false
