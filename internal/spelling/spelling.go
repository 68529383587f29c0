// Package spelling finds the word that a misspelt one was probably meant to be.
package spelling

import (
	"math"
	"strings"
)

// distance returns the Levenshtein distance: how many bytes must be inserted, removed or
// replaced to turn a into b. It keeps one row of the table at a time.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances from the a read so far to each b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// Similar returns the candidate that begins with name or else has the smallest distance to
// it, or "" if none is so close that name is probably a misspelling of it. The first of
// equals wins. Names that are too long to be misspelt words have no candidate, and two
// letters are the beginning of too many words.
func Similar(name string, candidates []string) string {
	const longest, shortestPrefix = 100, 3
	if len(name) > longest {
		return ""
	}
	for _, c := range candidates {
		if len(name) >= shortestPrefix && strings.HasPrefix(c, name) {
			return c
		}
	}
	return closest(name, candidates, max(2, len(name)/3))
}

// Nearest returns the candidate with the smallest distance to name, or "" without
// candidates. The first of equals wins.
func Nearest(name string, candidates []string) string {
	return closest(name, candidates, math.MaxInt)
}

// closest returns the candidate with the smallest distance to name, if one is within the most.
func closest(name string, candidates []string, most int) (best string) {
	for _, c := range candidates {
		if d := distance(name, c); d <= most {
			most, best = d-1, c
		}
	}
	return best
}

// Suggest returns the end of a message about a word that is none of those: the one that it was
// probably meant to be, or else all of them.
func Suggest(word string, known []string) string {
	for _, k := range known {
		if word != "" && strings.HasPrefix(k, word) {
			return "did you mean " + k + "?"
		}
	}
	if similar := Similar(word, known); similar != "" {
		return "did you mean " + similar + "?"
	}
	return "want one of " + strings.Join(known, ", ")
}
