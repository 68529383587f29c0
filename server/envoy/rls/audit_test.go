package rls_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
)

func newAudit(t *testing.T, out io.Writer) *audit.Log {
	t.Helper()
	log, err := audit.New(audit.Options{Out: out, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestRefundsAreOnRecord(t *testing.T) {
	log := newAudit(t, io.Discard)
	e := newEngine(t, penstock.NewMemory(nil), userRules, &engine.Options{Tokens: []callers.Token{{Name: "ada", Secret: "secret"}}})
	c := newClient(t, e, &rls.Options{ServiceOptions: rls.ServiceOptions{Audit: log}})
	if _, err := c.ShouldRateLimit(t.Context(), takeRequest("7")); err != nil {
		t.Fatal(err)
	}
	_, err := c.ShouldRateLimit(t.Context(), refundRequest("7"))
	wantCode(t, err, codes.PermissionDenied)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret", "penstock-reason", "ticket 7")
	if _, err := c.ShouldRateLimit(ctx, refundRequest("7")); err != nil {
		t.Fatal(err)
	}
	got := log.Recent()
	if len(got) != 2 {
		t.Fatalf("got %+v, want the refusal and the refund", got)
	}
	done, refused := got[0], got[1]
	if refused.Result != audit.Refused || refused.Actor.Via != "" || refused.Target.Domain != "api" || refused.Target.Key != "user=7" {
		t.Errorf("got %+v, want a refusal", refused)
	}
	if done.Result != audit.Done || done.API != "grpc" || done.Verb != "ShouldRateLimit" || done.Action != audit.KeyRefund || done.Units != 1 ||
		done.Actor.Name != "ada" || !strings.HasPrefix(done.Actor.Address, "127.0.0.1:") || done.Reason != "ticket 7" || done.Target.Rule != "api/user" ||
		*done.Before.Remaining != 1 || *done.After.Remaining != 2 {
		t.Errorf("got %+v", done)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestRefundsNeedAWritableAuditLog(t *testing.T) {
	e := newEngine(t, penstock.NewMemory(nil), userRules, nil)
	c := newClient(t, e, &rls.Options{ServiceOptions: rls.ServiceOptions{Audit: newAudit(t, brokenWriter{})}})
	for range 2 {
		if _, err := c.ShouldRateLimit(t.Context(), takeRequest("7")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.ShouldRateLimit(t.Context(), refundRequest("7"))
	wantCode(t, err, codes.Unavailable)
	r, err := c.ShouldRateLimit(t.Context(), takeRequest("7"))
	if err != nil || r.GetOverallCode().String() != "OVER_LIMIT" {
		t.Errorf("got %v, %v, want nothing refunded", r, err)
	}
}
