package adminapi

import "strings"

// Paths returns all that the door answers.
func (d *Server) Paths() (all []string) {
	for _, e := range d.endpoints() {
		all = append(all, strings.TrimSuffix(e.path, "{$}"))
	}
	return all
}
