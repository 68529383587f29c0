package server

import (
	"maps"
	"slices"
	"testing"
)

// Each case is a sequence of run IDs by address, and the addresses that the last one reports as
// restarted or replaced.
func TestDiffRunIDsFindsRestartedServers(t *testing.T) {
	type runs = map[string]string
	for name, c := range map[string]struct {
		cluster bool
		seen    []runs
		fresh   []string
	}{
		"first":                     {false, []runs{{"a": "1"}}, nil},
		"unchanged":                 {false, []runs{{"a": "1"}, {"a": "1"}}, nil},
		"restarted":                 {false, []runs{{"a": "1"}, {"a": "2"}}, []string{"a"}},
		"replaced":                  {false, []runs{{"a": "1"}, {"b": "2"}}, []string{"b"}},
		"same server, new address":  {false, []runs{{"a": "1"}, {"b": "1"}}, nil},
		"replaced, and again":       {false, []runs{{"a": "1"}, {"b": "2"}, {"a": "1"}}, []string{"a"}},
		"node joined":               {true, []runs{{"a": "1"}, {"a": "1", "b": "2"}}, nil},
		"node was down":             {true, []runs{{"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "2"}}, nil},
		"node restarted":            {true, []runs{{"a": "1", "b": "2"}, {"a": "1", "b": "3"}}, []string{"b"}},
		"node restarted while down": {true, []runs{{"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "3"}}, []string{"b"}},
		"restart reported once":     {true, []runs{{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1", "b": "3"}}, nil},
		"node down from the start":  {true, []runs{{"a": "1"}, {"a": "1"}, {"a": "1", "b": "3"}}, nil},
	} {
		var known runs
		var fresh []string
		for _, seen := range c.seen {
			known, fresh = diffRunIDs(known, maps.Clone(seen), c.cluster)
		}
		if !slices.Equal(fresh, c.fresh) {
			t.Errorf("%s: %v, want %v", name, fresh, c.fresh)
		}
	}
}
