package grpclimit_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/grpclimit"
	"github.com/penstock-io/penstock/rulelimit"
)

func byRules(t *testing.T, descriptors ...[]grpclimit.Entry) *grpclimit.Options {
	t.Helper()
	lim, err := rulelimit.Open(t.Context(), "testdata/shop.yaml", penstock.NewMemory(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lim.Close() })
	return &grpclimit.Options{Rules: &grpclimit.Rules{Limiter: lim, Domain: "shop", Descriptors: descriptors}}
}

func TestUnaryServerByRules(t *testing.T) {
	client := unary(t, nil, byRules(t,
		[]grpclimit.Entry{{Key: "user", Value: grpclimit.Metadata("x-user")}},
		[]grpclimit.Entry{{Key: "address"}},
		[]grpclimit.Entry{{Key: "method", Value: grpclimit.Method}},
	))
	expect(t, "a user", ask(t, client, 3, "x-user", "ada"), codes.OK, codes.OK, exhausted)
	expect(t, "another user", ask(t, client, 1, "x-user", "eve"), codes.OK)
	expect(t, "no user, and then too many calls of the method", ask(t, client, 2), codes.OK, exhausted)
	_, err := client.UnaryCall(t.Context(), &pb.SimpleRequest{})
	quota, retry := details(t, err)
	if len(quota.GetViolations()) != 1 || quota.GetViolations()[0].GetSubject() != "shop/method" || retry == nil {
		t.Errorf("the denial has %v, %v, want the name of the rule and a RetryInfo", quota, retry)
	}
}

// A call holds the permit of a rule while its handler runs.
func TestUnaryServerByRulesHoldsPermit(t *testing.T) {
	intercept := grpclimit.UnaryServer(nil, byRules(t,
		[]grpclimit.Entry{{Key: "report", Value: grpclimit.Method}, {Key: "permit", Value: grpclimit.PermitID}}))
	call := func(handler func()) codes.Code {
		_, err := intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"}, func(context.Context, any) (any, error) {
			handler()
			return nil, nil
		})
		return status.Code(err)
	}
	for range 2 {
		var second codes.Code
		if first := call(func() { second = call(func() {}) }); first != codes.OK || second != exhausted {
			t.Errorf("two calls at once: %v and %v, want the second denied", first, second)
		}
	}
}

// Messages hold no permits, and a rule that would grant them one is an error, which keeps none.
func TestMessageServerByRulesRefusesPermits(t *testing.T) {
	o := byRules(t, []grpclimit.Entry{{Key: "report", Value: grpclimit.Method}, {Key: "permit", Value: grpclimit.PermitID}})
	client := connect(t, serve(t, grpc.StreamInterceptor(grpclimit.MessageServer(nil, o))))
	for range 2 {
		stream, err := client.StreamingInputCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&pb.StreamingInputCallRequest{})
		if _, err := stream.CloseAndRecv(); status.Code(err) != codes.Internal {
			t.Errorf("a message under a concurrent limit: %v, want INTERNAL", err)
		}
	}
}
