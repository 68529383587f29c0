package rls_test

import (
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/penstock-io/penstock/server/overrides"
)

func TestBannedKeyIsOverLimit(t *testing.T) {
	e := newEngine(t, newMemory(), userRules, nil)
	ban := overrides.Override{Rule: e.Rules().Rules()[0].Name, Key: "user=ada", Limit: "ban", Until: time.Now().Add(time.Hour)}
	if err := e.Overrides().Put(t.Context(), []overrides.Override{ban}); err != nil {
		t.Fatal(err)
	}
	c := newClientFrom(t, "192.0.2.7", e)
	for user, want := range map[string]pb.RateLimitResponse_Code{
		"ada": pb.RateLimitResponse_OVER_LIMIT, "bob": pb.RateLimitResponse_OK,
	} {
		r, err := c.ShouldRateLimit(t.Context(), takeRequest(user))
		if err != nil || r.GetOverallCode() != want {
			t.Errorf("%s: got %v %v, want %v", user, r, err, want)
		}
		if until := r.GetStatuses()[0].GetDurationUntilReset().AsDuration(); user == "ada" && (until <= 0 || until > time.Hour) {
			t.Errorf("the ban ends in %v, want an hour", until)
		}
	}
}
