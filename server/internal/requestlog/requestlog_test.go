package requestlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// newLog returns a log whose lines have no time.
func newLog(t *testing.T, w io.Writer, o requestlog.Options) *requestlog.Log {
	t.Helper()
	o.API = "http"
	o.Log = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	l, err := requestlog.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func want(t *testing.T, b *bytes.Buffer, lines ...string) {
	t.Helper()
	if got := strings.Split(strings.TrimSpace(b.String()), "\n"); !slices.Equal(got, lines) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

func TestLogInvalidOncePerSecondAndCountsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		counts := map[requestlog.Reason]int{}
		l := newLog(t, &b, requestlog.Options{OnInvalid: func(r requestlog.Reason) { counts[r]++ }})
		l.Invalid(requestlog.BadLimit, "no such\nlevel=ERROR", "203.0.113.9:1")
		l.Invalid(requestlog.BadKey, "empty", "203.0.113.9:1")
		l.Invalid("", "the store's fault", "203.0.113.9:1")
		time.Sleep(time.Second)
		l.Invalid(requestlog.BadKey, "empty", "203.0.113.9:1")
		want(t, &b,
			`level=WARN msg="invalid request" api=http reason=limit problem="no such\nlevel=ERROR" from=203.0.113.9:1 not_logged=0`,
			`level=WARN msg="invalid request" api=http reason=key problem=empty from=203.0.113.9:1 not_logged=1`)
		if counts[requestlog.BadLimit] != 1 || counts[requestlog.BadKey] != 2 || len(counts) != 2 {
			t.Errorf("counted %v", counts)
		}
	})
}

func TestLogDenialsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := newLog(t, &b, requestlog.Options{Denials: penstock.PerSecond(2)})
		limit := penstock.PerMinute(3)
		l.Denied(limit, "ada\nforged", &penstock.Decision{RetryAfter: 1500 * time.Millisecond})
		l.Denied(limit, "ada", &penstock.Decision{RetryAfter: penstock.Never})
		for range 5 {
			l.Denied(limit, "ada", &penstock.Decision{RetryAfter: time.Second})
		}
		time.Sleep(time.Second)
		ds := []engine.Descriptor{
			{Entries: []rules.Entry{{Key: "tenant", Value: "globex"}}}, {Entries: []rules.Entry{{Key: "a", Value: "b"}}}, {Entries: []rules.Entry{{Key: "usr", Value: "x"}}},
		}
		l.DeniedByRules(ds, &engine.Result{OverLimit: true, Statuses: []engine.Status{
			{OverLimit: true, Rule: &rules.Rule{Name: "api/tenant", Limit: limit}, Decision: penstock.Decision{RetryAfter: time.Second}},
			{Rule: &rules.Rule{Name: "api/a"}},
			{OverLimit: true},
		}})
		time.Sleep(time.Second)
		banned := &penstock.Decision{RetryAfter: time.Hour, Source: penstock.SourceOverride}
		l.DeniedByRule(&rules.Rule{Name: "api/tenant"}, ds[0].Entries, banned)
		want(t, &b,
			`level=INFO msg=denied api=http limit=3/1m key="ada\nforged" retry_after=1.5s not_logged=0`,
			`level=INFO msg=denied api=http limit=3/1m key=ada retry_after=never not_logged=0`,
			`level=INFO msg=denied api=http rule=api/tenant key="tenant=globex" retry_after=1s not_logged=5`,
			`level=INFO msg=denied api=http rule="none matched" key="usr=x" retry_after=0s not_logged=0`,
			`level=INFO msg=denied api=http rule=api/tenant key="tenant=globex" retry_after=1h0m0s banned=true not_logged=0`)
	})
}

func TestLogWithoutDenialsOrNilDoesNothing(t *testing.T) {
	var b bytes.Buffer
	for _, l := range []*requestlog.Log{nil, newLog(t, &b, requestlog.Options{})} {
		l.Denied(penstock.PerSecond(1), "k", &penstock.Decision{})
		l.DeniedByRules(nil, &engine.Result{OverLimit: true, Statuses: []engine.Status{{OverLimit: true}}})
	}
	var none *requestlog.Log
	none.Invalid(requestlog.BadKey, "empty", "")
	if b.Len() > 0 {
		t.Errorf("logged %s", &b)
	}
}

func TestLogPanicsOncePerSecondWithTheirStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := newLog(t, &b, requestlog.Options{})
		for range 3 {
			l.Panicked(errors.New("a defect"), "10.0.0.1:1")
		}
		time.Sleep(time.Second)
		l.Panicked("another", "10.0.0.1:1")
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != 2 ||
			!strings.HasPrefix(lines[0], `level=ERROR msg=panic api=http value="a defect" from=10.0.0.1:1 stack="goroutine `) ||
			!strings.Contains(lines[0], "requestlog_test.go") || !strings.HasSuffix(lines[1], "not_logged=2") {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestNewRejectsInvalidLimit(t *testing.T) {
	if _, err := requestlog.New(requestlog.Options{Log: slog.Default(), Denials: penstock.Limit{Count: 1}}); err == nil {
		t.Error("want an error")
	}
}

func TestDeniedAllocatesNothingIfNotLogged(t *testing.T) {
	off := newLog(t, io.Discard, requestlog.Options{})
	busy := newLog(t, io.Discard, requestlog.Options{Denials: penstock.Limit{Count: 1, Period: time.Hour}})
	d := &penstock.Decision{RetryAfter: time.Second}
	busy.Denied(penstock.PerSecond(1), "k", d)
	for name, l := range map[string]*requestlog.Log{"off": off, "not sampled": busy} {
		if n := testing.AllocsPerRun(100, func() { l.Denied(penstock.PerSecond(1), "k", d) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestReasonOfIsEmptyUnlessRequestIsAtFault(t *testing.T) {
	for err, reason := range map[error]requestlog.Reason{
		fmt.Errorf("rule a: %w", engine.ErrSeveralLimits): requestlog.Descriptors,
		engine.ErrNoDomain:                        requestlog.Descriptors,
		fmt.Errorf("x: %w", penstock.ErrBadKey):   requestlog.BadKey,
		engine.ErrNoRules:                         requestlog.NoRules,
		penstock.ErrUnavailable:                   "",
		errors.New("some other error of a store"): "",
	} {
		if got := requestlog.ReasonOf(err); got != reason || reason != "" && !slices.Contains(requestlog.Reasons, reason) {
			t.Errorf("%v: got %q, want %q", err, got, reason)
		}
	}
}

func TestCutBoundsAndKeepsUTF8(t *testing.T) {
	for _, text := range []string{"", "ada", "\xff\xfe", strings.Repeat("ä", 1000), "x" + strings.Repeat("ä", 1000), strings.Repeat("\x80", 1000)} {
		got := requestlog.Cut(text)
		if len(got) > 1000 || !utf8.ValidString(got) {
			t.Errorf("%.10q…: got %d bytes, %q", text, len(got), got)
		}
		if utf8.ValidString(text) && !strings.HasPrefix(text, strings.TrimSuffix(got, "…")) {
			t.Errorf("%.10q…: got %q", text, got)
		}
	}
}
