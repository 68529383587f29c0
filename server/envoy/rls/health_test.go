package rls_test

import (
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestHealthFollowsSetServing(t *testing.T) {
	s, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	health := healthpb.NewHealthClient(dial(t, l))
	check := func(service string) string {
		t.Helper()
		r, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			return status.Code(err).String()
		}
		return r.GetStatus().String()
	}
	wantHealth := func(service, state string) {
		t.Helper()
		if got := check(service); got != state {
			t.Errorf("health of %q: got %s, want %s", service, got, state)
		}
	}
	wantHealth("", "SERVING")
	wantHealth("ratelimit", "SERVING")
	wantHealth("unknown", "NotFound")
	s.SetServing(false)
	wantHealth("ratelimit", "NOT_SERVING")
	wantHealth("", "SERVING")
	s.SetServing(true)
	wantHealth("ratelimit", "SERVING")
}
