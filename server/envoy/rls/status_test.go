package rls

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

func TestStatusOfErrors(t *testing.T) {
	live := context.Background()
	canceled, cancel := context.WithCancel(live)
	cancel()
	expired, cancel := context.WithDeadline(live, time.Now().Add(-time.Second))
	defer cancel()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		code codes.Code
	}{
		{live, engine.ErrNoDomain, codes.Unknown},
		{live, engine.ErrNoDescriptors, codes.Unknown},
		{live, engine.ErrNoRules, codes.Unknown},
		{live, engine.ErrTooManyDescriptors, codes.ResourceExhausted},
		{live, ErrMalformed, codes.InvalidArgument},
		{live, ErrBadOverride, codes.InvalidArgument},
		{live, ErrRefundForbidden, codes.PermissionDenied},
		{live, penstock.ErrBadLimit, codes.InvalidArgument},
		{live, penstock.ErrBadCost, codes.InvalidArgument},
		{live, penstock.ErrBadKey, codes.InvalidArgument},
		{live, penstock.ErrUnavailable, codes.Unknown},
		// A store's own timeout is not the caller's.
		{live, errors.Join(penstock.ErrUnavailable, context.DeadlineExceeded), codes.Unknown},
		{expired, errors.Join(penstock.ErrUnavailable, context.DeadlineExceeded), codes.DeadlineExceeded},
		{canceled, errors.Join(penstock.ErrUnavailable, context.Canceled), codes.Canceled},
	} {
		got := statusOf(c.ctx, fmt.Errorf("wrapped: %w", c.err))
		if status.Code(got) != c.code {
			t.Errorf("%v: got %v, want %v", c.err, got, c.code)
		}
	}
}
