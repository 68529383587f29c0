package grpclimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/grpclimit"
	"github.com/penstock-io/penstock/overload"
)

// invoker fails the first calls with UNAVAILABLE and a pushback, and counts all.
func invoker(sent *int, fail int, pushback string) grpc.UnaryInvoker {
	return func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		*sent++
		if *sent > fail {
			return nil
		}
		for _, o := range opts {
			if trailer, ok := o.(grpc.TrailerCallOption); ok && pushback != "" {
				*trailer.TrailerAddr = metadata.Pairs("grpc-retry-pushback-ms", pushback)
			}
		}
		return status.Error(codes.Unavailable, "too many calls in flight")
	}
}

func TestUnaryRetryWaitsForPushback(t *testing.T) {
	for _, c := range []struct {
		name, pushback string
		fail, sent     int
		code           codes.Code
		waits, atMost  time.Duration
	}{
		{"well", "", 0, 1, codes.OK, 0, 0},
		{"once", "700", 1, 2, codes.OK, 700 * time.Millisecond, 700 * time.Millisecond},
		{"without a time", "", 2, 3, codes.OK, 0, 150 * time.Millisecond},
		{"never", "-1", 1, 1, codes.Unavailable, 0, 0},
		{"malformed", "soon", 1, 1, codes.Unavailable, 0, 0},
		{"too long", "60000", 1, 1, codes.Unavailable, 0, 0},
		{"too often", "", 9, 3, codes.Unavailable, 0, 150 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent, begin := 0, time.Now()
				err := grpclimit.UnaryRetry(nil, nil)(t.Context(), "/m", nil, nil, nil, invoker(&sent, c.fail, c.pushback))
				if status.Code(err) != c.code || sent != c.sent {
					t.Errorf("got %v after %d calls, want %v after %d", err, sent, c.code, c.sent)
				}
				if took := time.Since(begin); took < c.waits || took > c.atMost {
					t.Errorf("took %v, want %v to %v", took, c.waits, c.atMost)
				}
			})
		})
	}
}

func TestUnaryRetryDoesNotStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, retry := 0, grpclimit.UnaryRetry(overload.NewRetryBudget(nil), nil)
		for range 1000 {
			_ = retry(t.Context(), "/m", nil, nil, nil, invoker(&sent, 1<<30, ""))
		}
		if sent != 1010 {
			t.Errorf("%d calls were made for 1000, want 10 more", sent)
		}
	})
}

func TestUnaryRetryAnswersInsteadOnlyInTheEnd(t *testing.T) {
	for _, c := range []struct {
		name       string
		fail, sent int
		code       codes.Code
		stale      int
		want       codes.Code
	}{
		{"well", 0, 1, codes.Unavailable, 0, codes.OK},
		{"once", 1, 2, codes.Unavailable, 0, codes.OK},
		{"too often", 9, 3, codes.Unavailable, 1, codes.OK},
		{"the server's fault", 9, 1, codes.Internal, 1, codes.OK},
		{"the caller's fault", 9, 1, codes.NotFound, 0, codes.NotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent, stale := 0, 0
				retry := grpclimit.UnaryRetry(nil, &grpclimit.RetryOptions{
					Instead: func(context.Context, grpclimit.Call, any, error) error { stale++; return nil },
				})
				err := retry(t.Context(), "/m", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					if sent++; sent <= c.fail {
						return status.Error(c.code, "failed")
					}
					return nil
				})
				if status.Code(err) != c.want || sent != c.sent || stale != c.stale {
					t.Errorf("got %v after %d calls, %d answers instead, want %v after %d, %d", err, sent, stale, c.want, c.sent, c.stale)
				}
			})
		})
	}
}

func TestUnaryRetryAnswersNobodyWhoHasCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sent, stale := 0, 0
	retry := grpclimit.UnaryRetry(nil, &grpclimit.RetryOptions{
		Instead: func(context.Context, grpclimit.Call, any, error) error { stale++; return nil },
	})
	if err := retry(ctx, "/m", nil, nil, nil, invoker(&sent, 9, "")); err == nil || stale != 0 || sent != 1 {
		t.Errorf("got %v after %d calls, %d answers instead, want the error of one", err, sent, stale)
	}
}
