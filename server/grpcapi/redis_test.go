package grpcapi_test

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

func TestRedisGoesAwayAndComesBack(t *testing.T) {
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rules := strings.Replace(houseRules, "requests_per_unit: 2", "requests_per_unit: 1000000", 1)
	j := newJudge(t, store, rules, nil)
	c := client(t, j, nil)
	if _, err := c.ShouldRateLimit(t.Context(), asking("ada")); err != nil {
		t.Fatal(err)
	}

	server.Kill()
	_, err = c.ShouldRateLimit(t.Context(), asking("ada"))
	wantCode(t, err, codes.Unknown)
	if !strings.Contains(status.Convert(err).Message(), "store unavailable") {
		t.Errorf("the error does not say what is wrong: %v", err)
	}
	awaitErrors(t, j, 1)

	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	awaitAnswer(t, c)
}

// awaitAnswer waits until a call is decided again.
func awaitAnswer(t *testing.T, c pb.RateLimitServiceClient) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := c.ShouldRateLimit(ctx, asking("ada"))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("not decided within a minute: %v", err)
		}
	}
}
