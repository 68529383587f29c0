package measure

import (
	"bytes"
	"errors"
	"testing"
)

func TestExitStatus(t *testing.T) {
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
		{"all is well", []string{"-strict"}, nil, reached, 0},
		{"a missed target is news", nil, nil, missed, 0},
		{"a missed target is an error when strict", []string{"-strict"}, nil, missed, 1},
		{"a quick run is not judged", []string{"-strict", "-quick"}, nil, missed, 0},
		{"a wrong workload is always an error", []string{"-quick"}, wrong, reached, 1},
	} {
		var complaint bytes.Buffer
		c := NewCommand("bench", &complaint, nil)
		if !c.Parse(test.args, func() error { return nil }) {
			t.Fatalf("%s: %q", test.name, &complaint)
		}
		c.Note("case", test.failed)
		if got := c.Status(test.findings); got != test.want {
			t.Errorf("%s: exit status %d, want %d; said %q", test.name, got, test.want, &complaint)
		}
	}
}

func TestCommandRunsWhatIsWanted(t *testing.T) {
	var complaint bytes.Buffer
	c := NewCommand("bench", &complaint, []string{"one", "two"})
	if !c.Parse([]string{"-run", "^t"}, func() error { return nil }) || c.Wants("one") || !c.Wants("two") {
		t.Errorf("-run ^t: wants one %t and two %t; said %q", c.Wants("one"), c.Wants("two"), &complaint)
	}
}
