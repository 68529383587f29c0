package grpclimit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/grpclimit"
)

// A test of waiting can only say that something did not happen too early: the
// machine may always be late.
const interval = 20 * time.Millisecond

func TestUnaryClient(t *testing.T) {
	target := serve(t)
	c := connect(t, target, grpc.WithUnaryInterceptor(grpclimit.UnaryClient(inMemory(t, "1/20ms"), nil)))
	start := time.Now()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := time.Since(start); got < 9*interval {
		t.Errorf("ten calls took %v", got)
	}
}

func TestClientKeysAndCosts(t *testing.T) {
	target, lim := serve(t), inMemory(t, "100/1h")
	c := connect(t, target, grpc.WithUnaryInterceptor(grpclimit.UnaryClient(lim, &grpclimit.ClientOptions{
		Key: func(_ context.Context, call grpclimit.Call) string { return call.Method },
		Cost: func(_ context.Context, call grpclimit.Call) int64 {
			return int64(call.Message.(*pb.SimpleRequest).GetResponseSize())
		},
	})), grpc.WithStreamInterceptor(grpclimit.StreamClient(lim, nil)))
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseSize: 7}); err != nil {
		t.Fatal(err)
	}
	if n, err := send(t, c, 3); n != 3 || err != nil {
		t.Fatalf("%d messages, %v", n, err)
	}
	for key, want := range map[string]int64{"/grpc.testing.TestService/UnaryCall": 93, target: 99} {
		if d, err := lim.Peek(t.Context(), key); err != nil || d.Remaining != want {
			t.Errorf("%s: %v, %v, want %d", key, d, err, want)
		}
	}
}

func TestMessageClient(t *testing.T) {
	c := connect(t, serve(t), grpc.WithStreamInterceptor(grpclimit.MessageClient(inMemory(t, "1/20ms"), nil)))
	start := time.Now()
	if n, err := send(t, c, 6); n != 6 || err != nil {
		t.Errorf("%d messages, %v", n, err)
	}
	if got := time.Since(start); got < 5*interval {
		t.Errorf("six messages took %v", got)
	}
}

func TestClientErrors(t *testing.T) {
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	short, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	spent := inMemory(t, "1/1h")
	if _, err := spent.Allow(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	target := serve(t)
	for _, test := range []struct {
		ctx  context.Context
		lim  *penstock.Limiter
		code codes.Code
		is   error
	}{
		{short, spent, codes.DeadlineExceeded, penstock.ErrDeadline},
		{gone, spent, codes.Canceled, context.Canceled},
		{t.Context(), inMemory(t, "0/1h"), codes.ResourceExhausted, penstock.ErrNever},
		{t.Context(), limiter(t, broken, "1/1h"), codes.Unavailable, penstock.ErrUnavailable},
	} {
		o := &grpclimit.ClientOptions{Key: func(context.Context, grpclimit.Call) string { return "k" }}
		c := connect(t, target, grpc.WithUnaryInterceptor(grpclimit.UnaryClient(test.lim, o)))
		_, err := c.UnaryCall(test.ctx, &pb.SimpleRequest{})
		if status.Code(err) != test.code || !errors.Is(err, test.is) {
			t.Errorf("got %v: %v, want %v: %v", status.Code(err), err, test.code, test.is)
		}
	}
	for name, intercept := range map[string]grpc.StreamClientInterceptor{
		"calls": grpclimit.StreamClient(inMemory(t, "0/1h"), nil), "messages": grpclimit.MessageClient(inMemory(t, "0/1h"), nil),
	} {
		stream, err := connect(t, target, grpc.WithStreamInterceptor(intercept)).StreamingInputCall(t.Context())
		if err == nil {
			err = stream.Send(&pb.StreamingInputCallRequest{})
		}
		if status.Code(err) != codes.ResourceExhausted || !errors.Is(err, penstock.ErrNever) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWaitingIsBounded(t *testing.T) {
	lim := inMemory(t, "1/1h")
	c := connect(t, serve(t), grpc.WithUnaryInterceptor(grpclimit.UnaryClient(lim, &grpclimit.ClientOptions{MaxWaiting: 2})))
	ctx, leave := context.WithCancel(t.Context())
	codesSeen := make(chan codes.Code, 10)
	for range 10 {
		go func() {
			_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
			codesSeen <- status.Code(err)
		}()
	}
	full := 0
	for range 8 { // of ten, one may go and two may wait
		if <-codesSeen == codes.ResourceExhausted {
			full++
		}
	}
	leave()
	for range 2 {
		<-codesSeen
	}
	if full < 7 {
		t.Errorf("%d of ten found too many waiting", full)
	}
}
