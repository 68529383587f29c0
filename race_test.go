package penstock_test

// fewerUnderRace returns a tenth of a number of random cases or steps if the race detector is
// on, which makes each ten times as slow and finds races in the first few. make unit has them
// all.
func fewerUnderRace(n int) int {
	if raceEnabled {
		return max(n/10, 1)
	}
	return n
}
