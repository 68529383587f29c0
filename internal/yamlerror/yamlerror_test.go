package yamlerror_test

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-io/penstock/internal/yamlerror"
)

func TestLocateFindsLineOfMistake(t *testing.T) {
	long := strings.Repeat("a: 1\n", 60_000)
	for _, c := range []struct {
		text string
		line int
	}{
		{"a: [1\n", 1},
		{"a: 1\nb: 2\nc: 3\n  d: 4\ne: 5\n", 4},
		{"a: 1\n---\nb: 2\nc: }\nd: 4\n", 4},
		{"a: '\n" + long, 60_002}, // too long to search: the line that the parser names
	} {
		var n yaml.Node
		decoder := yaml.NewDecoder(strings.NewReader(c.text))
		err := decoder.Decode(&n)
		for err == nil {
			err = decoder.Decode(&n)
		}
		line, message := yamlerror.Locate([]byte(c.text), err)
		if line != c.line || message == "" || strings.Contains(message, "yaml:") {
			t.Errorf("%.40q: got line %d, %q, want line %d; the parser says %v", c.text, line, message, c.line, err)
		}
	}
}

// The parser speaks of a character that cannot start a token, which in an editor looks like spaces.
func TestLocateNamesTab(t *testing.T) {
	for text, want := range map[string]string{
		"a:\n\t- b\n":    "found a tab: indent with spaces",
		"a:\n  - @\tb\n": "found character that cannot start any token",
	} {
		var n yaml.Node
		line, message := yamlerror.Locate([]byte(text), yaml.Unmarshal([]byte(text), &n))
		if line != 2 || message != want {
			t.Errorf("%q: got line %d, %q, want line 2, %q", text, line, message, want)
		}
	}
}
