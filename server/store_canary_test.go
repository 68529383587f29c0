package server

import (
	"maps"
	"slices"
	"testing"
)

// What servers tell of their runs, one time after the other, and which of them are
// found to have been started again or to have replaced others.
func TestRunsAreCompared(t *testing.T) {
	type runs = map[string]string
	for name, c := range map[string]struct {
		cluster bool
		told    []runs
		fresh   []string // the last time
	}{
		"the first":                     {false, []runs{{"a": "1"}}, nil},
		"nothing new":                   {false, []runs{{"a": "1"}, {"a": "1"}}, nil},
		"started again":                 {false, []runs{{"a": "1"}, {"a": "2"}}, []string{"a"}},
		"replaced":                      {false, []runs{{"a": "1"}, {"b": "2"}}, []string{"b"}},
		"the same elsewhere":            {false, []runs{{"a": "1"}, {"b": "1"}}, nil},
		"replaced, and back":            {false, []runs{{"a": "1"}, {"b": "2"}, {"a": "1"}}, []string{"a"}},
		"a node has joined":             {true, []runs{{"a": "1"}, {"a": "1", "b": "2"}}, nil},
		"a node was away":               {true, []runs{{"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "2"}}, nil},
		"a node was started again":      {true, []runs{{"a": "1", "b": "2"}, {"a": "1", "b": "3"}}, []string{"b"}},
		"a node is back as another":     {true, []runs{{"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "3"}}, []string{"b"}},
		"and that is told only once":    {true, []runs{{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1", "b": "3"}}, nil},
		"a node is away from the start": {true, []runs{{"a": "1"}, {"a": "1"}, {"a": "1", "b": "3"}}, nil},
	} {
		var known runs
		var fresh []string
		for _, told := range c.told {
			known, fresh = diffRunIDs(known, maps.Clone(told), c.cluster)
		}
		if !slices.Equal(fresh, c.fresh) {
			t.Errorf("%s: %v, want %v", name, fresh, c.fresh)
		}
	}
}
