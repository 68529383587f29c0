package measure

import (
	"bytes"
	"errors"
	"testing"
)

func TestCommandExitStatus(t *testing.T) {
	var missed, reached Findings
	missed.Add("case", "≤ 1", false, "2")
	reached.Add("case", "≤ 1", true, "1")
	reached.Add("known", "", false, "2")
	wrong := errors.New("all keys were the same")
	for _, test := range []struct {
		name     string
		args     []string
		failed   error
		findings Findings
		want     int
	}{
		{"all targets met", []string{"-strict"}, nil, reached, 0},
		{"a missed target is no error", nil, nil, missed, 0},
		{"a missed target is an error when strict", []string{"-strict"}, nil, missed, 1},
		{"a quick run is not checked", []string{"-strict", "-quick"}, nil, missed, 0},
		{"a wrong workload is always an error", []string{"-quick"}, wrong, reached, 1},
	} {
		var stderr bytes.Buffer
		c := NewCommand("bench", &stderr, nil)
		if !c.Parse(test.args, func() error { return nil }) {
			t.Fatalf("%s: %q", test.name, &stderr)
		}
		c.Record("case", test.failed)
		if got := c.Status(test.findings); got != test.want {
			t.Errorf("%s: exit status %d, want %d; printed %q", test.name, got, test.want, &stderr)
		}
	}
}

func TestCommandWantsMatchesPattern(t *testing.T) {
	var stderr bytes.Buffer
	c := NewCommand("bench", &stderr, []string{"one", "two"})
	if !c.Parse([]string{"-run", "^t"}, func() error { return nil }) || c.Wants("one") || !c.Wants("two") {
		t.Errorf("-run ^t: wants one %t and two %t; printed %q", c.Wants("one"), c.Wants("two"), &stderr)
	}
}
