package httpapi_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/server/requestlimits"
)

func newAudit(t *testing.T, out io.Writer) *audit.Log {
	t.Helper()
	log, err := audit.New(audit.Options{Out: out, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// summaries returns what the log has, the oldest first.
func summaries(log *audit.Log) (all []string) {
	for _, e := range slices.Backward(log.Recent()) {
		text := fmt.Sprintf("%s %s %s: %s%s %s", e.Verb, e.Action, e.Result, e.Target.Domain, e.Target.Rule, e.Target.Key)
		if e.Before != nil {
			text += fmt.Sprintf(" %d+%d=%d", *e.Before.Remaining, e.Units, *e.After.Remaining)
		}
		all = append(all, text)
	}
	return all
}

func TestRefundsAreOnRecord(t *testing.T) {
	for _, c := range []struct {
		path, body string
		want       []string
	}{
		{"/v1/take", `{"key":"k","limit":"5/1h","cost":-1}`, []string{"POST /v1/take key.refund done:  k 2+1=3"}},
		{"/v1/take", `{"key":"k","limit":"5/1h","reset":true}`, []string{"POST /v1/take key.reset done:  k 2+3=5"}},
		{"/v1/take", `{"key":"k","limit":"5/1h","cost":1}`, nil},
		{"/v1/take", `{"key":"k","limit":"5/1h","cost":0}`, nil},
		{"/v1/take", `{"key":"k","limit":"5/1h","cost":-1,"id":"x"}`, nil}, // traffic: only its taker knows the ID
		{
			"/v1/take", `{"domain":"edge","descriptors":[{"entries":[{"key":"free"}],"cost":-1},{"entries":[{"key":"unruled"}],"cost":-1},{"entries":[{"key":"tenant","value":"x"}]}]}`,
			[]string{"POST /v1/take key.refund done: edgeedge/free free=", "POST /v1/take key.refund done: edge unruled="},
		},
		{
			"/v1/take", `{"mode":"each","requests":[{"key":"k","limit":"5/1h"},{"key":"k","limit":"5/1h","cost":-1},` +
				`{"domain":"edge","reset":true,"descriptors":[{"entries":[{"key":"tenant","value":"x"}]}]}]}`,
			[]string{"POST /v1/take key.refund done:  k 1+1=2", "POST /v1/take key.reset done: edgeedge/tenant tenant=x 5+0=5"},
		},
		{
			"/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"x"}],"isNegativeHits":true}]}`,
			[]string{"POST /json key.refund done: edgeedge/tenant tenant=x 5+0=5"},
		},
		{"/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"tenant","value":"x"}]}]}`, nil},
	} {
		log, e := newAudit(t, io.Discard), newEngine(t, frozenMemory(), nil)
		used := penstock.Request{Key: "k", Limit: requestlimits.Of(penstock.PerHour(5)), Cost: 3}
		if _, err := e.Store().Take(t.Context(), used); err != nil {
			t.Fatal(err)
		}
		caller := refundCallers[0]
		caller.header = http.Header{"Penstock-Reason": {"ticket 7"}}
		w := caller.post(newServer(t, e, &httpapi.Options{Audit: log}), c.path, c.body, "")
		if got := summaries(log); w.Code != 200 || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %d %s and %q, want %q", c.body, w.Code, w.Body, got, c.want)
		}
		for _, e := range log.Recent() {
			if e.API != "http" || e.Reason != "ticket 7" || e.Actor != (audit.Actor{Via: audit.ViaLocal, Address: "127.0.0.1:4711"}) {
				t.Errorf("%s: got %+v", c.body, e)
			}
		}
	}
}

func TestRefusedRefundsAreOnRecord(t *testing.T) {
	for _, refund := range refundBodies {
		log := newAudit(t, io.Discard)
		server := newServer(t, newEngine(t, frozenMemory(), &engine.Options{Tokens: []callers.Token{{Name: "ada", Secret: "secret"}}}), &httpapi.Options{Audit: log})
		remote := refundCaller{from: "203.0.113.9:1", host: "penstock:8080"}
		if w := remote.post(server, refund.path, refund.body, "Bearer guess"); w.Code != http.StatusForbidden {
			t.Fatalf("%s: got %d %s, want 403", refund.body, w.Code, w.Body)
		}
		got := log.Recent()
		if len(got) != 1 || got[0].Result != audit.Refused || got[0].Actor != (audit.Actor{Address: "203.0.113.9:1"}) || got[0].Target.Key == "" {
			t.Errorf("%s: got %+v, want one refusal", refund.body, got)
		}
		if w := remote.post(server, refund.path, refund.body, "Bearer secret"); w.Code != http.StatusOK {
			t.Fatalf("%s: got %d %s, want 200", refund.body, w.Code, w.Body)
		}
		if got := log.Recent(); len(got) != 2 || got[0].Result != audit.Done || got[0].Actor.Name != "ada" || got[0].Actor.Via != audit.ViaToken {
			t.Errorf("%s: got %+v, want it done by ada", refund.body, got)
		}
	}
}

func TestRefundsNeedAWritableAuditLog(t *testing.T) {
	e := newEngine(t, frozenMemory(), nil)
	server := newServer(t, e, &httpapi.Options{Audit: newAudit(t, brokenWriter{})})
	used := penstock.Request{Key: "k", Limit: requestlimits.Of(penstock.PerSecond(5)), Cost: 5}
	if _, err := e.Store().Take(t.Context(), used); err != nil {
		t.Fatal(err)
	}
	for _, refund := range refundBodies {
		if w := refundCallers[0].post(server, refund.path, refund.body, ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s %s: got %d %s, want 503", refund.path, refund.body, w.Code, w.Body)
		}
	}
	used.Cost = 0
	if d, err := e.Store().Take(t.Context(), used); err != nil || d.Remaining != 0 {
		t.Errorf("got %v, %v, want nothing refunded", d, err)
	}
	if w := refundCallers[0].post(server, "/v1/take", `{"key":"other","limit":"5/1s"}`, ""); w.Code != http.StatusOK {
		t.Errorf("a take: got %d %s, want 200", w.Code, w.Body)
	}
}
