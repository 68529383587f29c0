package storetest

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm/vectors"
)

// testTranscripts runs every scenario of every transcript on a store of its own.
func testTranscripts(t *testing.T, open Open, supported []penstock.Algorithm) {
	for _, script := range readTranscripts(t) {
		for _, s := range script.scenarios {
			if !s.isOnly(supported) {
				continue
			}
			name := strings.TrimSuffix(script.name, path.Ext(script.name)) + "/" + s.title
			t.Run(name, func(t *testing.T) { runScenario(t, open, script, s) })
		}
	}
}

func readTranscripts(t *testing.T) []*transcript {
	t.Helper()
	names, err := fs.Glob(vectors.Files, "*.txt")
	if err != nil || len(names) == 0 {
		t.Fatalf("no transcripts to run: %v", err)
	}
	var scripts []*transcript
	for _, name := range names {
		text, err := vectors.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		script, err := parseTranscript(name, string(text))
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, script)
	}
	return scripts
}

// runScenario compares every result with the one in the transcript.
func runScenario(t *testing.T, open Open, script *transcript, s scenario) {
	clock := &Clock{}
	mustSet(t, clock, &s.steps[0])
	store := open(t, clock)
	for i := range s.steps {
		step := &s.steps[i]
		got, err := runStep(store, clock, step)
		if err != nil {
			t.Fatalf("%s:%d: %v", script.name, step.calls[0].line+1, err)
		}
		for j, c := range step.calls {
			switch {
			case c.noWant:
				t.Errorf("%s:%d: %s\n got %s\nwant a result to compare that with",
					script.name, c.line+1, c.text(), got[j])
			case got[j] != c.want:
				t.Errorf("%s:%d: %s\n got %s\nwant %s", script.name, c.line+1, c.text(), got[j], c.want)
			}
		}
	}
}

func mustSet(t testing.TB, clock *Clock, s *step) {
	t.Helper()
	if err := clock.set(s.at); err != nil {
		t.Fatal(err)
	}
}

// runStep sends the requests of a step to a store, at the step's time.
func runStep(store penstock.Store, clock *Clock, s *step) ([]result, error) {
	if err := clock.set(s.at); err != nil {
		return nil, err
	}
	if s.how == single {
		a, err := runSingle(store, clock, s)
		return []result{a}, err
	}
	rs := make([]penstock.Request, len(s.calls))
	for i, c := range s.calls {
		rs[i] = c.request
	}
	ds := make([]penstock.Decision, len(rs))
	take := penstock.TakeEach
	if s.how == all {
		take = penstock.TakeAll
	}
	err := take(context.Background(), store, rs, ds)
	unknown := errors.Is(err, penstock.ErrUnknownID)
	results := make([]result, len(ds))
	for i, d := range ds {
		results[i] = result{times: 1, allowed: count(d.Allowed), last: d, unknownID: unknown}
	}
	if unknown {
		return results, nil
	}
	return results, err
}

// runSingle sends one request, as often as the step says.
func runSingle(store penstock.Store, clock *Clock, s *step) (result, error) {
	a := result{times: s.times}
	for i := range s.times {
		if i > 0 && s.every > 0 {
			if err := clock.set(clock.Now().Add(s.every)); err != nil {
				return a, err
			}
		}
		d, err := store.Take(context.Background(), s.calls[0].request)
		if a.unknownID = errors.Is(err, penstock.ErrUnknownID); a.unknownID {
			continue
		}
		if err != nil {
			return a, err
		}
		a.allowed += count(d.Allowed)
		a.last = d
	}
	return a, nil
}
