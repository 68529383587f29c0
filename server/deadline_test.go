package server_test

import (
	"context"
	"sync"
	"testing"
	"time"

	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/penstock-io/penstock/internal/redistest"
)

// Envoy gives its calls a deadline, and lets the request pass if it is missed. While Redis stalls,
// every call is answered before its deadline, by the fallback, and the breaker opens after a
// few of them. The Redis timeout is longer than the deadlines, so it is no help.
func TestServerAnswersBeforeDeadlineWhileRedisStalls(t *testing.T) {
	for _, compat := range []string{"", "envoy"} {
		t.Run("compat="+compat, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			answersBeforeDeadlineWhileRedisStalls(t, compat)
		})
	}
}

func answersBeforeDeadlineWhileRedisStalls(t *testing.T, compat string) {
	stalling, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer stalling.Stop()
	rules := write(t, "rules.yaml", "domain: api\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000}}, {key: path, rate_limit: {unit: year, requests_per_unit: 1000}}]")
	d := start(t, map[string]string{"store": "redis://" + stalling.Addr, "rules": rules, "redis-timeout": "30s", "compat": compat, "deny-cache": "false"})
	client := envoyrls.NewRateLimitServiceClient(dialGRPC(t, d, nil))
	ask := func(keys ...string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // the server ends its wait after eight
		defer cancel()
		r := &envoyrls.RateLimitRequest{Domain: "api"}
		for _, key := range keys {
			r.Descriptors = append(r.Descriptors, &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: "x"}}})
		}
		_, err := client.ShouldRateLimit(ctx, r)
		return err
	}
	if err := ask("user"); err != nil {
		t.Fatal(err)
	}
	if err := stalling.Pause(); err != nil {
		t.Fatal(err)
	}
	_ = ask("user") // on a busy machine, an answer to another call may be read only now: Redis is called busy then, and not down
	var wg sync.WaitGroup
	for i := range 12 {
		keys := [][]string{{"user"}, {"path"}, {"user", "path"}}[i%3]
		wg.Go(func() {
			if err := ask(keys...); err != nil {
				t.Errorf("a call about %q was lost: %v", keys, err)
			}
		})
	}
	wg.Wait()
	d.await("the breaker counts the calls", d.isDegraded)
	if err := stalling.Resume(); err != nil {
		t.Fatal(err)
	}
	d.end()
}
