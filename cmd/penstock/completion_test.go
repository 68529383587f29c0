package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server"
)

// Every flag of serve that lists its words in the help completes them, and no other flag
// offers file names where it wants none.
func TestServeFlagsCompleteTheirValues(t *testing.T) {
	serve := serveCommand()
	for _, s := range server.Settings {
		complete, ok := serve.GetFlagCompletionFunc(s.Name)
		if !ok {
			t.Errorf("--%s has no completion", s.Name)
			continue
		}
		words, _ := complete(serve, nil, "")
		if !slices.Equal(words, s.Values) {
			t.Errorf("--%s: got %q, want %q", s.Name, words, s.Values)
		}
		for _, word := range s.Values {
			if s.Kind != "" && !strings.Contains(s.Help, word) {
				t.Errorf("--%s: the help does not name %s", s.Name, word)
			}
		}
		if listed := strings.Contains(s.Help, " or ") && slices.Contains([]string{"mode", "form", "level", "format"}, s.Kind); listed && len(s.Values) == 0 {
			t.Errorf("--%s: want the words of the help as Values: %s", s.Name, s.Help)
		}
	}
}
