package adminapi

import "strings"

// Paths returns the paths of all endpoints.
func (s *Server) Paths() (all []string) {
	for _, e := range s.endpoints() {
		all = append(all, strings.TrimSuffix(e.path, "{$}"))
	}
	return all
}

// NumberOfActions returns how many requests change something.
func NumberOfActions() int { return len(actions) }
