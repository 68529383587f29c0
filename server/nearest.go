package server

// Nearest returns the name that a misspelt one was most likely meant to be: the one
// that takes the fewest letters to add, drop or change.
func Nearest(name string, names []string) (best string) {
	least := len(name) + 1<<10
	for _, candidate := range names {
		if d := distance(name, candidate); d < least {
			least, best = d, candidate
		}
	}
	return best
}

// distance is Levenshtein's, a row of his table at a time.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
