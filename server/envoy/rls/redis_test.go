package rls_test

import (
	"context"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

func TestRedisDownAndUp(t *testing.T) {
	t.Parallel()
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rules := strings.Replace(userRules, "requests_per_unit: 2", "requests_per_unit: 1000000", 1)
	e := newEngine(t, store, rules, nil)
	c := newClient(t, e, nil)
	if _, err := c.ShouldRateLimit(t.Context(), takeRequest("ada")); err != nil {
		t.Fatal(err)
	}

	server.Kill()
	_, err = c.ShouldRateLimit(t.Context(), takeRequest("ada"))
	wantCode(t, err, codes.Unknown)
	if !strings.Contains(status.Convert(err).Message(), "store unavailable") {
		t.Errorf("the error lacks the cause: %v", err)
	}
	waitForErrors(t, e, 1)

	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitForDecision(t, c)
}

// waitForDecision waits until a call succeeds.
func waitForDecision(t *testing.T, c pb.RateLimitServiceClient) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := c.ShouldRateLimit(ctx, takeRequest("ada"))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("no decision within a minute: %v", err)
		}
	}
}
