package respapi

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/engine"
)

// newAudited returns a server with rules, a token with a name, and an audit log.
func newAudited(t *testing.T, out io.Writer) (*Server, *audit.Log) {
	t.Helper()
	log, err := audit.New(audit.Options{Out: out, Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	clock := newFakeClock()
	e := engine.New(clock.memory(), &engine.Options{Tokens: []callers.Token{{Name: "ada", Secret: "secret"}}})
	e.SetRules(testRules(t))
	s := must(New(e, &Options{Audit: log}))
	s.now = clock.now
	return s, log
}

// summaries returns what the log has, the oldest first.
func summaries(log *audit.Log) (all []string) {
	for _, e := range slices.Backward(log.Recent()) {
		text := fmt.Sprintf("%s %s %s: %s %s", e.Verb, e.Action, e.Result, e.Target.Domain+e.Target.Limit, e.Target.Key)
		switch {
		case e.Before == nil:
		case e.Before.Remaining == nil:
			text += fmt.Sprintf(" %vs=%vs", *e.Before.ResetAfter, *e.After.ResetAfter)
		default:
			text += fmt.Sprintf(" %d+%d=%d", *e.Before.Remaining, e.Units, *e.After.Remaining)
		}
		all = append(all, text)
	}
	return all
}

func TestRefundsAndResetsAreOnRecord(t *testing.T) {
	for _, c := range []struct {
		command string
		want    []string
	}{
		{"PENSTOCK.TAKE KEY k LIMIT 5/1h COST -1", []string{"PENSTOCK.TAKE key.refund done: 5/1h k 2+1=3"}},
		{"penstock.take KEY k LIMIT 5/1h RESET", []string{"PENSTOCK.TAKE key.reset done: 5/1h k 2+3=5"}},
		{"PENSTOCK.TAKE KEY k LIMIT 5/1h COST -1 ID x", nil}, // traffic: only its taker knows the ID
		{"PENSTOCK.TAKE KEY k LIMIT 5/1h", nil},
		{"PENSTOCK.TAKE KEY k LIMIT 5/1h COST 0", nil},
		{"PENSTOCK.TAKE DOMAIN shop user 42 RESET", []string{"PENSTOCK.TAKE key.reset done: shop10/1m burst=5 user=42 5+0=5"}},
		{"PENSTOCK.TAKE DOMAIN shop ENTRIES 1 user 42 COST -1 ENTRIES 1 cost 7", []string{"PENSTOCK.TAKE key.refund done: shop10/1m burst=5 user=42 5+0=5"}},
		{"DEL used unused", []string{"DEL key.reset done: cl.throttle used 2s=0s", "DEL key.reset done: cl.throttle unused 0s=0s"}},
		{"unlink used", []string{"UNLINK key.reset done: cl.throttle used 2s=0s"}},
	} {
		s, log := newAudited(t, io.Discard)
		client := newFakeClient(s)
		for _, command := range []string{"AUTH ada secret", "PENSTOCK.TAKE KEY k LIMIT 5/1h COST 3", "CL.THROTTLE used 15 30 60", c.command} {
			if got := client.do(t, strings.Fields(command)...); strings.HasPrefix(got, "-") {
				t.Fatalf("%s: %s", command, got)
			}
		}
		if got := summaries(log); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.command, got, c.want)
		}
		for _, e := range log.Recent() {
			if e.API != "resp" || e.Actor.Name != "ada" || e.Actor.Via != audit.ViaToken || e.Actor.Address == "" {
				t.Errorf("%s: got %+v", c.command, e)
			}
		}
	}
}

var undoing = []string{
	"DEL k", "UNLINK k", "PENSTOCK.TAKE KEY k LIMIT 5/1h COST -1", "PENSTOCK.TAKE KEY k LIMIT 5/1h RESET",
	"PENSTOCK.TAKE DOMAIN shop user 42 RESET",
}

func TestRefusedRefundsAndResetsAreOnRecord(t *testing.T) {
	s, log := newAudited(t, io.Discard)
	client := newFakeClient(s)
	for i, command := range undoing {
		if got := client.do(t, strings.Fields(command)...); !strings.HasPrefix(got, "-NOPERM") {
			t.Fatalf("%s: %s", command, got)
		}
		got := log.Recent()
		if len(got) != i+1 || got[0].Result != audit.Refused || got[0].Actor.Via != "" || got[0].Detail == "" {
			t.Errorf("%s: got %+v, want a refusal", command, got)
		}
	}
}

func TestRefundsAndResetsNeedAWritableAuditLog(t *testing.T) {
	s, _ := newAudited(t, brokenWriter{})
	client := newFakeClient(s)
	for _, command := range []string{"AUTH secret", "CL.THROTTLE k 4 5 3600 5", "PENSTOCK.TAKE KEY k LIMIT 5/1h COST 5"} {
		if got := client.do(t, strings.Fields(command)...); strings.HasPrefix(got, "-") {
			t.Fatalf("%s: %s", command, got)
		}
	}
	for _, command := range undoing {
		if got := client.do(t, strings.Fields(command)...); !strings.HasPrefix(got, "-UNAVAILABLE the audit log cannot be written") {
			t.Errorf("%s: got %s, want -UNAVAILABLE", command, got)
		}
	}
	if got := client.do(t, "PENSTOCK.TAKE", "KEY", "k", "LIMIT", "5/1h", "COST", "0"); !strings.Contains(got, `"remaining" :0`) {
		t.Errorf("got %s, want nothing refunded", got)
	}
	if got := client.do(t, "EXISTS", "k"); got != ":1" {
		t.Errorf("got %s, want the key of CL.THROTTLE", got)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestLoginAcceptsTheNameOfTheToken(t *testing.T) {
	s, _ := newAudited(t, io.Discard)
	for command, want := range map[string]string{
		"AUTH secret":               "+OK",
		"AUTH ada:secret":           "+OK",
		"AUTH default secret":       "+OK",
		"AUTH ada secret":           "+OK",
		"AUTH bob secret":           "-WRONGPASS",
		"AUTH ada guess":            "-WRONGPASS",
		"HELLO 2 AUTH ada secret":   "*",
		"HELLO 2 AUTH bob secret":   "-WRONGPASS",
		"HELLO 3 AUTH default wrng": "-WRONGPASS",
	} {
		if got := newFakeClient(s).do(t, strings.Fields(command)...); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s", command, got, want)
		}
	}
}
