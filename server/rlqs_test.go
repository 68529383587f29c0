package server_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reportUsage opens a stream and reports a request of a user.
func reportUsage(t *testing.T, d *daemon, user string) rlqs.RateLimitQuotaService_StreamRateLimitQuotasClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := rlqs.NewRateLimitQuotaServiceClient(dialGRPC(t, d, nil)).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	usage := &rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: &rlqs.BucketId{Bucket: map[string]string{"user": user}}, NumRequestsAllowed: 1}
	_ = stream.Send(&rlqs.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{usage}})
	return stream
}

func TestQuotaServiceIsOffByDefault(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"rules": writeRules(t, shopRules)})
	if _, err := reportUsage(t, d, "42").Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want Unimplemented", err)
	}
}

func TestQuotaServiceAssignsAndEndsWithTheDaemon(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"rules": writeRules(t, shopRules), "rlqs": "true"})
	stream := reportUsage(t, d, "42")
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	action := m.GetBucketAction()[0]
	if action.GetBucketId().GetBucket()["user"] != "42" || action.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket().GetMaxTokens() != 1 {
		t.Errorf("got %v, want a unit for user 42", m)
	}
	if s := takeGRPC(t, dialGRPC(t, d, nil), "42"); s.LimitRemaining != 3 {
		t.Errorf("after one unit was assigned and one taken, %d of 5 are left", s.LimitRemaining)
	}
	wantQuotaMetrics(t, d)
	d.stop()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v, want Unavailable", err)
	}
	<-d.done
}

func wantQuotaMetrics(t *testing.T, d *daemon) {
	t.Helper()
	_, text := get(t, "http://"+d.addr("admin")+"/metrics")
	page, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"penstock_rlqs_streams", "penstock_rlqs_buckets", "penstock_rlqs_assigned_units_total"} {
		if !strings.Contains(text, name+" 1\n") {
			t.Errorf("%s is not 1", name)
		}
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("%s does not list %s", metricsPage, name)
		}
	}
}
