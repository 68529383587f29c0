package grpclimit_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/grpclimit"
	"github.com/penstock-io/penstock/httplimit"
)

// A call holds a permit while its handler runs, and releases it however that ends.
func TestUnaryServerHoldsPermitWhileHandlerRuns(t *testing.T) {
	limit, err := penstock.ParseLimit("1/30s concurrent")
	if err != nil {
		t.Fatal(err)
	}
	lim, err := penstock.New(penstock.NewMemory(nil), limit)
	if err != nil {
		t.Fatal(err)
	}
	intercept := grpclimit.UnaryServer(lim, &grpclimit.Options{
		Key: func(context.Context, grpclimit.Call) string { return "key" },
	})
	call := func(handler grpc.UnaryHandler) error {
		defer func() { _ = recover() }()
		_, err := intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, handler)
		return err
	}
	nothing := func(context.Context, any) (any, error) { return nil, nil }
	if err := call(func(ctx context.Context, _ any) (any, error) { return nil, call(nothing) }); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a second call at once: got %v, want RESOURCE_EXHAUSTED", err)
	}
	_ = call(func(context.Context, any) (any, error) { panic("handler") })
	if err := call(nothing); err != nil {
		t.Errorf("after a panic: got %v, want the permit released", err)
	}
}

// A handler that goes on after its client has cancelled the call still holds its permit.
func TestStreamServerHoldsPermitAfterCallWasCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := inMemory(t, "1/30s concurrent")
		intercept := grpclimit.StreamServer(lim, &grpclimit.Options{Key: grpclimit.Global})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := intercept(nil, serverStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/s/m"}, func(_ any, ss grpc.ServerStream) error {
			<-ss.Context().Done()
			time.Sleep(time.Minute)
			d, err := lim.Peek(t.Context(), "global")
			if err != nil || d.Remaining != 0 {
				t.Errorf("a minute after the call was cancelled: %v, %v, want the permit held", d, err)
			}
			return err
		})
		if d, peekErr := lim.Peek(t.Context(), "global"); err != nil || peekErr != nil || d.Remaining != 1 {
			t.Errorf("after the handler: %v, %v, %v, want the permit released", err, d, peekErr)
		}
	})
}

// A serverStream has only a context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context { return s.ctx }

// A call whose permit is lost ends, except in shadow mode, which enforces nothing.
func TestUnaryServerShadowServesAfterPermitIsLost(t *testing.T) {
	limit, err := penstock.ParseLimit("1/30s concurrent")
	if err != nil {
		t.Fatal(err)
	}
	for _, shadow := range []func(context.Context, grpclimit.Call, []httplimit.Answer){nil, func(context.Context, grpclimit.Call, []httplimit.Answer) {}} {
		synctest.Test(t, func(t *testing.T) {
			memory, down := penstock.NewMemory(nil), atomic.Bool{}
			lim, err := penstock.New(penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
				if down.Load() {
					return penstock.Decision{}, penstock.ErrUnavailable
				}
				return memory.Take(ctx, r)
			}), limit)
			if err != nil {
				t.Fatal(err)
			}
			intercept := grpclimit.UnaryServer(lim, &grpclimit.Options{
				Key: func(context.Context, grpclimit.Call) string { return "key" }, Shadow: shadow,
			})
			_, _ = intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, func(ctx context.Context, _ any) (any, error) {
				down.Store(true)
				time.Sleep(time.Minute)
				if lost := ctx.Err() != nil; lost == (shadow != nil) {
					t.Errorf("shadow mode %t: the context has ended: %t", shadow != nil, lost)
				}
				return nil, nil
			})
		})
	}
}

// A limiter that depends on the call may be concurrent.
func TestUnaryServerLimiterForHoldsPermit(t *testing.T) {
	limit, err := penstock.ParseLimit("1/30s concurrent")
	if err != nil {
		t.Fatal(err)
	}
	lim, err := penstock.New(penstock.NewMemory(nil), limit)
	if err != nil {
		t.Fatal(err)
	}
	o := grpclimit.Options{
		Key:        func(context.Context, grpclimit.Call) string { return "key" },
		LimiterFor: func(context.Context, grpclimit.Call) *penstock.Limiter { return lim },
		OnError:    func(context.Context, grpclimit.Call, error) {},
	}
	intercept := grpclimit.UnaryServer(nil, &o)
	call := func(handler grpc.UnaryHandler) error {
		_, err := intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, handler)
		return err
	}
	nothing := func(context.Context, any) (any, error) { return nil, nil }
	for range 2 {
		if err := call(func(context.Context, any) (any, error) { return nil, call(nothing) }); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a second call at once: got %v, want RESOURCE_EXHAUSTED", err)
		}
	}
	o.Additional = []grpclimit.Charge{{LimiterFor: o.LimiterFor}}
	intercept = grpclimit.UnaryServer(nil, &o)
	if err := call(nothing); status.Code(err) != codes.Internal {
		t.Errorf("a concurrent limit beside another: got %v, want INTERNAL", err)
	}
}
