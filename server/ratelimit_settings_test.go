package server_test

import (
	"fmt"
	"testing"
	"time"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// Months are those of the calendar for rules and overrides, which have one counter; requests get headers; dots in
// values are none in names; and statistics tell of overrides and of what shadow mode let pass.
func TestRatelimitSettingsOfAugust(t *testing.T) {
	t.Parallel()
	receiver := startStatsd(t, "tcp")
	d := startRatelimit(t, "domain: shop\ndescriptors: [{key: user, value_to_metric: true, rate_limit: {unit: month, requests_per_unit: 2}}]",
		"USE_CALENDAR_MONTH_RATE_LIMIT=true", "LIMIT_REQUEST_HEADERS_ENABLED=true", "LIMIT_REQUEST_LIMIT_HEADER=X-Limit",
		"SANITIZE_DESCRIPTOR_METRIC_DOTS=true", "SHADOW_MODE=true",
		"STATSD_HOST=127.0.0.1", fmt.Sprint("STATSD_PORT=", receiver.addr.Port), "STATS_FLUSH_INTERVAL=24h")
	client := envoyrls.NewRateLimitServiceClient(dialGRPC(t, d, nil))
	ask := func(limit *envoyratelimit.RateLimitDescriptor_RateLimitOverride) *envoyrls.RateLimitResponse {
		before := time.Now().UTC()
		answer, err := client.ShouldRateLimit(t.Context(), &envoyrls.RateLimitRequest{Domain: "shop", Descriptors: []*envoyratelimit.RateLimitDescriptor{{
			Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: "a.b"}}, Limit: limit,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		end := time.Date(before.Year(), before.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		reset := time.Duration(answer.GetStatuses()[0].GetDurationUntilReset().GetSeconds()) * time.Second
		if late := end.Sub(before) - reset; late < -time.Second || late > time.Minute {
			t.Errorf("reset in %v, %v before the end of the month", reset, late)
		}
		return answer
	}
	ask(nil)
	override := &envoyratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: envoytype.RateLimitUnit_MONTH}
	answer := ask(override)
	if got := answer.GetStatuses()[0].GetLimitRemaining(); got != 3 {
		t.Errorf("%d left of 5 after two hits", got)
	}
	if got := fmt.Sprint(answer.GetRequestHeadersToAdd()); got == "[]" || answer.GetRequestHeadersToAdd()[0].GetKey() != "X-Limit" || answer.GetRequestHeadersToAdd()[0].GetValue() != "5" {
		t.Errorf("request headers %s, want X-Limit: 5 first", got)
	}
	ask(nil)
	d.end() // sends the statistics once
	got := func() string { return receiver.text("global_shadow_mode") + receiver.text("total_hits") }
	want := "ratelimit.service.global_shadow_mode|c 1\nratelimit.service.rate_limit.shop.user_a_b.total_hits|c 3\n"
	await(t, func() string { return "got\n" + got() + "want\n" + want + d.log.String() }, func() bool { return got() == want })
}
