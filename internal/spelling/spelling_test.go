package spelling

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"abc", "abc", 0},
		{"abc", "abd", 1},
		{"abc", "ac", 1},
		{"ac", "abc", 1},
		{"kitten", "sitting", 3},
		{"saturday", "sunday", 3},
		{"brust", "burst", 2},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"brust", []string{"count", "burst", "period"}, "burst"},
		{"cont", []string{"cost", "cont", "count"}, "cont"},
		{"a", []string{"b", "c"}, "b"},
		{"a", nil, ""},
	} {
		if got := Nearest(c.name, c.candidates); got != c.want {
			t.Errorf("%q among %q: got %q, want %q", c.name, c.candidates, got, c.want)
		}
	}
}

func TestSimilarIgnoresOtherWords(t *testing.T) {
	for _, c := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"brust", []string{"count", "burst", "period"}, "burst"},
		{"limitt", []string{"limits", "limit"}, "limits"}, // the first of equals
		{"minut", []string{"second", "minute"}, "minute"},
		{"fortnight", []string{"second", "minute"}, ""},
		{"a", []string{"abc", "bcd"}, "abc"},
		{"rate", []string{"name", "rate_limit"}, "rate_limit"}, // the beginning of a word
		{"ra", []string{"rb", "rate_limit"}, "rb"},
		{"a", nil, ""},
		{strings.Repeat("a", 101), []string{strings.Repeat("a", 100)}, ""},
	} {
		if got := Similar(c.name, c.candidates); got != c.want {
			t.Errorf("%q among %q: got %q, want %q", c.name, c.candidates, got, c.want)
		}
	}
}

func TestSuggestNamesSimilarWordOrAll(t *testing.T) {
	known := []string{"fixed-window", "sliding-window", "align="}
	for word, want := range map[string]string{
		"fixd-window": "did you mean fixed-window?",
		"sl":          "did you mean sliding-window?",
		"5":           "want one of fixed-window, sliding-window, align=",
		"":            "want one of fixed-window, sliding-window, align=",
	} {
		if got := Suggest(word, known); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", word, got, want)
		}
	}
}
