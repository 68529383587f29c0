// Package spelling tells how far a word is from the one that was meant.
package spelling

// Distance returns how many bytes must be put in, taken out or exchanged to make b of
// a. It is Levenshtein's, a row of his table at a time.
func Distance(a, b string) int {
	row := make([]int, len(b)+1) // distances from the a read so far to each b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			exchanged := diagonal
			if a[i] != b[j] {
				exchanged++
			}
			diagonal = row[j+1]
			row[j+1] = min(exchanged, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// Nearest returns the candidate with the smallest distance to name, or "" without
// candidates. The first of equals wins.
func Nearest(name string, candidates []string) (best string) {
	least := -1
	for _, c := range candidates {
		if d := Distance(name, c); least < 0 || d < least {
			least, best = d, c
		}
	}
	return best
}
