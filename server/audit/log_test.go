package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
)

func newLog(t *testing.T, out io.Writer) *audit.Log {
	t.Helper()
	l, err := audit.New(audit.Options{Out: out, Node: "node-1", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var reset = audit.Entry{
	Action: audit.KeyReset, API: "admin", Verb: "DELETE /v1/keys",
	Actor:  audit.Actor{Name: "ada", Via: audit.ViaToken, Address: "203.0.113.9:4711"},
	Target: audit.Target{Rule: "shop/user", Limit: "10/1m", Key: "user=42"},
	Reason: "ticket 4711",
}

// decode returns the lines of a log.
func decode(t *testing.T, text string) (lines []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		lines = append(lines, m)
	}
	return lines
}

func TestActionIsOneLineBeforeAndOneAfter(t *testing.T) {
	var b bytes.Buffer
	l := newLog(t, &b)
	p, err := begin(l, reset)
	if err != nil {
		t.Fatal(err)
	}
	if lines := decode(t, b.String()); len(lines) != 1 || lines[0]["result"] != "started" || lines[0]["reason"] != "ticket 4711" {
		t.Fatalf("before the action: got %s", &b)
	}
	if got := l.Recent(); len(got) != 0 {
		t.Errorf("before the action has ended: got %v among the recent ones", got)
	}
	d := &penstock.Decision{Remaining: 10, Granted: -4}
	p.Before, p.After, p.Units = audit.Before(d), audit.After(d), 4
	p.Done()
	lines := decode(t, b.String())
	if len(lines) != 2 || lines[0]["id"] != lines[1]["id"] || lines[1]["id"] == "" {
		t.Fatalf("got %s, want two lines with one ID", &b)
	}
	delete(lines[1], "id")
	delete(lines[1], "time")
	want := map[string]any{
		"node": "node-1", "action": "key.reset", "api": "admin", "verb": "DELETE /v1/keys",
		"actor":  map[string]any{"name": "ada", "via": "token", "address": "203.0.113.9:4711"},
		"target": map[string]any{"rule": "shop/user", "limit": "10/1m", "key": "user=42"},
		"before": map[string]any{"remaining": 6.}, "after": map[string]any{"remaining": 10., "reset_after": 0.},
		"units": 4., "reason": "ticket 4711", "result": "done",
	}
	if fmt.Sprint(lines[1]) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", lines[1], want)
	}
	if got := l.Recent(); len(got) != 1 || got[0].Result != audit.Done || got[0].Units != 4 {
		t.Errorf("recent: got %+v, want the action that was done", got)
	}
}

func TestActionThatFailsSaysWhy(t *testing.T) {
	var b bytes.Buffer
	l := newLog(t, &b)
	for _, failure := range []error{penstock.ErrUnavailable, context.Canceled, context.DeadlineExceeded} {
		p, err := begin(l, reset)
		if err != nil {
			t.Fatal(err)
		}
		p.Fail(failure)
		if e := l.Recent()[0]; e.Result != audit.Unknown || e.Detail != failure.Error() {
			t.Errorf("got %+v, want unknown and the error", e)
		}
	}
}

func TestActionBeginsOnlyIfTheLogCanBeWritten(t *testing.T) {
	problems, ends := 0, map[audit.Result]int{}
	l, err := audit.New(audit.Options{
		Out:     writerFunc(func([]byte) (int, error) { return 0, errors.New("disk full") }),
		OnError: func() { problems++ },
		OnEnd:   func(_ string, r audit.Result) { ends[r]++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := l.BeginAll([]audit.Entry{reset, reset}); !errors.Is(err, audit.ErrUnwritable) || !strings.Contains(err.Error(), "disk full") || p != nil {
		t.Errorf("got %v, %v, want ErrUnwritable and the cause", p, err)
	}
	if problems != 1 || ends[audit.Failed] != 2 || len(ends) != 1 {
		t.Errorf("got %d errors and %v, want one error and two failed actions", problems, ends)
	}
	if recent := l.Recent(); len(recent) != 2 || recent[0].Result != audit.Failed {
		t.Errorf("got %v, want both actions as failed", recent)
	}
}

// A pipe that is not read blocks its writer. Actions must not hang with it, nor must the
// line that blocks let others overtake it.
func TestBlockedLogFailsActionsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var b bytes.Buffer
		l, err := audit.New(audit.Options{Out: writerFunc(func(p []byte) (int, error) { <-release; return b.Write(p) })})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range 2 {
			if _, err := begin(l, reset); !errors.Is(err, audit.ErrUnwritable) {
				t.Errorf("got %v, want ErrUnwritable", err)
			}
		}
		if waited := time.Since(start); waited > 10*time.Second {
			t.Errorf("waited %v", waited)
		}
		close(release)
		synctest.Wait()
		p, err := begin(l, reset)
		if err != nil {
			t.Fatalf("after the log is read again: %v", err)
		}
		p.Done()
		if n := len(decode(t, b.String())); n != 3 {
			t.Errorf("got %d lines, want the blocked one and two of the last action:\n%s", n, &b)
		}
	})
}

// A full disk cuts a line off. The next line must be readable.
func TestLineAfterATornOneIsWhole(t *testing.T) {
	var b bytes.Buffer
	full := true
	l := newLog(t, writerFunc(func(p []byte) (int, error) {
		if full {
			n, _ := b.Write(p[:10])
			return n, errors.New("no space left on device")
		}
		return b.Write(p)
	}))
	if _, err := begin(l, reset); !errors.Is(err, audit.ErrUnwritable) {
		t.Fatalf("got %v, want ErrUnwritable", err)
	}
	full = false
	if _, err := begin(l, reset); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(b.String(), "\n")
	if lines := decode(t, rest); len(lines) != 1 || lines[0]["result"] != "started" {
		t.Errorf("got %q, want a whole line after the torn one", b.String())
	}
}

func TestRefusalsOfUnidentifiedCallersAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		counted := 0
		l, err := audit.New(audit.Options{Out: &b, OnEnd: func(string, audit.Result) { counted++ }})
		if err != nil {
			t.Fatal(err)
		}
		anonymous := reset
		anonymous.Actor = audit.Actor{Address: "203.0.113.9:1"}
		for range 1000 {
			l.Refuse(anonymous, "no token")
		}
		before := len(decode(t, b.String()))
		time.Sleep(time.Second)
		l.Refuse(anonymous, "no token")
		lines := decode(t, b.String())
		if before > 100 || len(lines) != before+1 || lines[before]["not_recorded"] != float64(1000-before) || counted != 1001 {
			t.Errorf("got %d lines of %d refusals, the last one %v", before, counted, lines[len(lines)-1])
		}
		for range 1000 {
			l.Refuse(reset, "no reason")
		}
		if n := len(decode(t, b.String())) - len(lines); n != 1000 {
			t.Errorf("got %d lines of 1000 refusals of a caller with a name, want all", n)
		}
	})
}

func TestRecentKeepsActionsInAFloodOfRefusals(t *testing.T) {
	l := newLog(t, io.Discard)
	act := func(key string) {
		e := reset
		e.Target.Key = key
		p, err := begin(l, e)
		if err != nil {
			t.Fatal(err)
		}
		p.Done()
	}
	for i := range 150 {
		act(fmt.Sprint("early ", i))
	}
	for range 1000 {
		l.Refuse(reset, "no reason")
	}
	act("last")
	recent, results := l.Recent(), map[audit.Result]int{}
	for _, e := range recent {
		results[e.Result]++
	}
	if len(recent) != 200 || results[audit.Done] < 100 || recent[0].Target.Key != "last" {
		t.Errorf("got %d entries, %v, the newest %q", len(recent), results, recent[0].Target.Key)
	}
	for i := range 300 {
		act(fmt.Sprint("late ", i))
	}
	if recent = l.Recent(); len(recent) != 200 || recent[0].Target.Key != "late 299" || recent[199].Target.Key != "late 100" {
		t.Errorf("got %d entries from %q to %q, want the last 200", len(recent), recent[0].Target.Key, recent[len(recent)-1].Target.Key)
	}
}

func TestHostileTextStaysInItsField(t *testing.T) {
	var b bytes.Buffer
	l := newLog(t, &b)
	hostile := "x\n{\"result\":\"done\"}\r\x1b[2J\u009b31m\u202e\U000e0001\x7f\u2028\"\\"
	e := reset
	e.Target.Key, e.Reason, e.Actor.Name = hostile, hostile, hostile
	l.Refuse(e, hostile)
	if strings.ContainsAny(strings.TrimSuffix(b.String(), "\n"), "\n\r\x1b\u009b\u202e\U000e0001\x7f\u2028") {
		t.Errorf("got %q, want every character escaped that does not print", b.String())
	}
	line := decode(t, b.String())[0]
	for _, got := range []any{line["reason"], line["detail"], line["target"].(map[string]any)["key"], line["actor"].(map[string]any)["name"]} {
		if got != hostile {
			t.Errorf("got %q, want %q", got, hostile)
		}
	}
}

func TestLongTextIsCut(t *testing.T) {
	var b bytes.Buffer
	l := newLog(t, &b)
	long := strings.Repeat("ä", 1<<20)
	e := audit.Entry{
		Action: long, API: long, Verb: long, Reason: long, Actor: audit.Actor{Name: long, Via: "", Address: long, Certificate: long},
		Target: audit.Target{Domain: long, Rule: long, Limit: long, Key: long},
	}
	l.Refuse(e, long)
	if b.Len() > 16<<10 {
		t.Errorf("got a line of %d bytes", b.Len())
	}
	if decode(t, b.String()); strings.Contains(b.String(), "�") {
		t.Error("a rune was split")
	}
}

func TestKeyOfAnyBytesIsKept(t *testing.T) {
	var b bytes.Buffer
	l := newLog(t, &b)
	e := reset
	e.Target.Key = "a\x00\xff"
	l.Refuse(e, "")
	if target := decode(t, b.String())[0]["target"].(map[string]any); target["key_base64"] != "YQD/" || target["key"] != nil {
		t.Errorf("got %v, want the key in base64", target)
	}
}

func TestNilLogLetsActionsPass(t *testing.T) {
	var l *audit.Log
	p, err := begin(l, reset)
	if err != nil {
		t.Fatal(err)
	}
	p.Done()
	l.Refuse(reset, "")
	if l.Recent() != nil {
		t.Error("got entries")
	}
	if _, err := audit.New(audit.Options{}); err == nil {
		t.Error("without an output: want an error")
	}
}

func TestConcurrentActionsDoNotMixLines(t *testing.T) {
	var b bytes.Buffer
	l := newLog(t, &b)
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			p, err := begin(l, reset)
			if err != nil {
				t.Error(err)
				return
			}
			p.Done()
		})
	}
	group.Wait()
	ids := map[any]int{}
	for _, line := range decode(t, b.String()) {
		ids[line["id"]]++
	}
	if len(ids) != 20 {
		t.Errorf("got %v, want two lines for each of 20 IDs", ids)
	}
}

func TestFileAppendsAndReopens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f, err := audit.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if _, err := io.WriteString(f, text); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("two\n")
	if err := f.Reopen(); err != nil {
		t.Fatal(err)
	}
	write("three\n")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{path + ".1": "one\ntwo\n", path: "three\n"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", filepath.Base(name), got, err, want)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want a file that only its owner reads", info.Mode(), err)
	}
	if _, err := audit.OpenFile(filepath.Join(path, "x")); err == nil {
		t.Error("in a folder that does not exist: want an error")
	}
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

func begin(l *audit.Log, e audit.Entry) (*audit.Pending, error) {
	ps, err := l.BeginAll([]audit.Entry{e})
	if err != nil {
		return nil, err
	}
	return ps[0], nil
}
