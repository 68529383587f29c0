package server

import "github.com/penstock-io/penstock/internal/spelling"

// Nearest returns the name that a misspelt one was most likely meant to be: the one
// that takes the fewest letters to add, drop or change.
func Nearest(name string, names []string) (best string) {
	least := len(name) + 1<<10
	for _, candidate := range names {
		if d := spelling.Distance(name, candidate); d < least {
			least, best = d, candidate
		}
	}
	return best
}
