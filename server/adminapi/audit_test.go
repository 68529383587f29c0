package adminapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

func newAudit(t *testing.T, out io.Writer) *audit.Log {
	t.Helper()
	log, err := audit.New(audit.Options{Out: out, Node: "node-1", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// used takes five units of the key k under 5/1m.
func used(t *testing.T, e *engine.Engine) {
	t.Helper()
	r := penstock.Request{Key: "k", Limit: requestlimits.Of(penstock.PerMinute(5)), Cost: 5}
	if d, err := e.Store().Take(t.Context(), r); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
}

// remaining returns what is left of the key k under 5/1m.
func remaining(t *testing.T, e *engine.Engine) int64 {
	t.Helper()
	d, err := e.Store().Take(t.Context(), penstock.Request{Key: "k", Limit: requestlimits.Of(penstock.PerMinute(5))})
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

const theKey = "/v1/keys?limit=5/1m&key=k"

// getAudit returns the entries of /v1/audit.
func getAudit(t *testing.T, s *adminapi.Server, header ...string) []map[string]any {
	t.Helper()
	var got struct{ Entries []map[string]any }
	w := send(s, "GET", "/v1/audit", header...)
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || got.Entries == nil {
		t.Fatalf("/v1/audit: got %d %s", w.Code, w.Body)
	}
	return got.Entries
}

func TestAuditNamesTheTokenThatActed(t *testing.T) {
	e := newEngineWithOptions(t, &engine.Options{Tokens: []callers.Token{{Name: "ada", Secret: "secret-a"}, {Name: "bob", Secret: "secret-b"}}})
	s := newServer(t, e, adminapi.Options{Audit: newAudit(t, io.Discard)})
	used(t, e)
	bob := []string{"Authorization", "Bearer secret-b", "From", "203.0.113.9:1"}
	if got := getAudit(t, s, bob...); len(got) != 0 {
		t.Errorf("before any action: got %v", got)
	}
	if w := send(s, "DELETE", theKey+"&reason=ticket+7", bob...); w.Code != 200 {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	if w := send(s, "POST", theKey+"&reason=r", "Authorization", "Bearer ada:secret-a"); w.Code != 200 {
		t.Fatalf("with the whole line of the token file: got %d %s", w.Code, w.Body)
	}
	got := getAudit(t, s, bob...)
	if len(got) != 2 || got[0]["actor"].(map[string]any)["name"] != "ada" {
		t.Fatalf("got %v, want ada's refund first", got)
	}
	actor, target := got[1]["actor"].(map[string]any), got[1]["target"].(map[string]any)
	if actor["name"] != "bob" || actor["via"] != "token" || actor["address"] != "203.0.113.9:1" || target["key"] != "k" || target["limit"] != "5/1m" ||
		got[1]["reason"] != "ticket 7" || got[1]["result"] != "done" || got[1]["node"] != "node-1" || got[1]["units"] != 5. ||
		got[1]["before"].(map[string]any)["remaining"] != 0. || got[1]["after"].(map[string]any)["remaining"] != 5. {
		t.Errorf("got %v", got[1])
	}
	if text := send(s, "GET", "/v1/audit", bob...).Body.String(); strings.Contains(text, "secret") {
		t.Errorf("a token is on record: %s", text)
	}
}

func TestRefusedActionsAreOnRecord(t *testing.T) {
	e := newEngineWithOptions(t, &engine.Options{Token: "secret"})
	s := newServer(t, e, adminapi.Options{Audit: newAudit(t, io.Discard)})
	used(t, e)
	token := []string{"Authorization", "Bearer secret"}
	for _, c := range []struct {
		method, target string
		header         []string
		status         int
		detail, key    string
	}{
		{"DELETE", theKey + "&reason=r", nil, 401, "want the header", "k"},
		{"POST", theKey + "&reason=r", []string{"Authorization", "Bearer guess"}, 401, "want the header", "k"},
		{"DELETE", theKey, token, 400, "want a reason", "k"},
		{"POST", theKey + "&reason=r&units=0", token, 400, "1 or more", "k"},
		{"DELETE", "/v1/keys?domain=nowhere&a=b&reason=r", token, 404, "no such rule", "a=..."},
	} {
		if w := send(s, c.method, c.target, c.header...); w.Code != c.status {
			t.Errorf("%s %s: got %d %s, want %d", c.method, c.target, w.Code, w.Body, c.status)
		}
		last := getAudit(t, s, token...)[0]
		key, _ := last["target"].(map[string]any)["key"].(string)
		if last["result"] != "refused" || last["verb"] != c.method+" /v1/keys" || !strings.Contains(last["detail"].(string), c.detail) || key != c.key {
			t.Errorf("%s %s: got %v, want refused: %s", c.method, c.target, last, c.detail)
		}
	}
	for _, target := range []string{"/v1/keys?limit=x&key=k", "/rules"} {
		_ = send(s, "GET", target)
	}
	if got := getAudit(t, s, token...); len(got) != 5 {
		t.Errorf("got %d entries, want none of reads", len(got))
	}
	if n := remaining(t, e); n != 0 {
		t.Errorf("after refused actions %d units remain, want 0", n)
	}
}

func TestRefusedOverrideIsOnRecordThoughItsQueryIsInvalid(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true, Audit: newAudit(t, io.Discard)})
	for i, method := range []string{"PUT", "DELETE"} {
		if w := send(s, method, overridesURL+"?rule=r&key=k&reason=a&reason=b"); w.Code != 400 {
			t.Errorf("%s: got %d %s, want 400", method, w.Code, w.Body)
		}
		got := getAudit(t, s)
		if len(got) != i+1 || got[0]["result"] != "refused" || got[0]["verb"] != method+" "+overridesURL || !strings.Contains(fmt.Sprint(got[0]["target"]), "key:k rule:r") {
			t.Errorf("%s: got %v, want it on record as refused, with its target", method, got)
		}
	}
	_ = send(s, "GET", overridesURL+"?nothing=1")
	if got := getAudit(t, s); len(got) != 2 {
		t.Errorf("got %d entries, want none of reads", len(got))
	}
}

// A refund that was carried out is on record as done, and its caller is told not to repeat it,
// though the store fails when it is asked for the state afterwards.
func TestRefundIsDoneThoughItsStateCannotBeRead(t *testing.T) {
	failing := errors.New("store is down")
	memory := penstock.NewMemory(nil)
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if r.Cost > 0 && !r.Overdraw {
			return penstock.Decision{}, failing
		}
		return memory.Take(ctx, r)
	})
	s := newServer(t, newEngineWithStore(t, store, nil), adminapi.Options{Loopback: true, Audit: newAudit(t, io.Discard)})
	owing := penstock.Request{Key: "k", Limit: requestlimits.Of(penstock.PerHour(5)), Cost: 9, Overdraw: true}
	if d, err := store.Take(t.Context(), owing); err != nil || d.Granted != 9 {
		t.Fatal(d, err)
	}
	w := send(s, "POST", "/v1/keys?limit=5/1h&key=k&units=2&reason=r")
	if w.Code != 503 || !strings.Contains(w.Body.String(), "do not repeat it") || !strings.Contains(w.Body.String(), failing.Error()) {
		t.Errorf("got %d %s, want 503 and that it is done", w.Code, w.Body)
	}
	if got := getAudit(t, s); len(got) != 1 || got[0]["result"] != "done" || got[0]["units"] != 2. {
		t.Errorf("got %v, want two units on record as refunded", got)
	}
}

func TestReadOnlyRefusesActions(t *testing.T) {
	e := newEngine(t)
	s := newServer(t, e, adminapi.Options{Loopback: true, ReadOnly: true, Audit: newAudit(t, io.Discard)})
	used(t, e)
	for i, method := range []string{"POST", "DELETE"} {
		if w := send(s, method, theKey+"&reason=r"); w.Code != 403 || !strings.Contains(w.Body.String(), "--admin-actions=false") {
			t.Errorf("%s: got %d %s, want 403", method, w.Code, w.Body)
		}
		if got := getAudit(t, s); len(got) != i+1 || got[0]["result"] != "refused" || got[0]["actor"].(map[string]any)["via"] != "local" {
			t.Errorf("%s: got %v, want it on record as refused", method, got)
		}
	}
	if w := send(s, "GET", theKey); w.Code != 200 || remaining(t, e) != 0 {
		t.Errorf("a peek: got %d, want 200, and nothing refunded", w.Code)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestActionsNeedAWritableAuditLog(t *testing.T) {
	onEachStore(t, func(t *testing.T, e *engine.Engine) {
		s := newServer(t, e, adminapi.Options{Loopback: true, Audit: newAudit(t, brokenWriter{})})
		used(t, e)
		for _, method := range []string{"POST", "DELETE"} {
			if w := send(s, method, theKey+"&reason=r"); w.Code != 503 || !strings.Contains(w.Body.String(), "audit log cannot be written") {
				t.Errorf("%s: got %d %s, want 503", method, w.Code, w.Body)
			}
		}
		if n := remaining(t, e); n != 0 {
			t.Errorf("%d units remain, want 0: nothing must be refunded", n)
		}
		if w := send(s, "GET", theKey); w.Code != 200 {
			t.Errorf("a peek: got %d %s, want 200", w.Code, w.Body)
		}
	})
}
