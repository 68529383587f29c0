package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/grpclimit"
)

// A test of waiting can only say that something did not happen too early: the
// machine may always be late.
const interval = 20 * time.Millisecond

func TestUnaryClientWaits(t *testing.T) {
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

func TestClientUsesKeyAndCost(t *testing.T) {
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

func TestMessageClientWaitsForEachMessage(t *testing.T) {
	c := connect(t, serve(t), grpc.WithStreamInterceptor(grpclimit.MessageClient(inMemory(t, "1/20ms"), nil)))
	start := time.Now()
	if n, err := send(t, c, 6); n != 6 || err != nil {
		t.Errorf("%d messages, %v", n, err)
	}
	if got := time.Since(start); got < 5*interval {
		t.Errorf("six messages took %v", got)
	}
}

func TestClientErrorCodes(t *testing.T) {
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

// A call whose only message cannot be sent is cancelled, at the server too.
func TestMessageClientCancelsCallThatCannotSend(t *testing.T) {
	begun, ended := make(chan bool), make(chan error, 1)
	target := serve(t, grpc.StreamInterceptor(func(_ any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
		close(begun)
		<-ss.Context().Done()
		ended <- ss.Context().Err()
		return nil
	}))
	broken := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		<-begun
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	c := connect(t, target, grpc.WithStreamInterceptor(grpclimit.MessageClient(limiter(t, broken, "1/1h"), nil)))
	if _, err := c.StreamingOutputCall(t.Context(), &pb.StreamingOutputCallRequest{}); !errors.Is(err, penstock.ErrUnavailable) {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the call goes on at the server")
	}
}

// After a RetryInfo, no kind of call is made before that time. A call with a
// shorter deadline fails at once.
func TestClientHonoursRetryInfo(t *testing.T) {
	for name, test := range map[string]struct {
		server grpc.ServerOption
		client func(*penstock.Limiter) grpc.DialOption
		call   func(context.Context, pb.TestServiceClient) error
	}{
		"calls": {
			grpc.UnaryInterceptor(grpclimit.UnaryServer(inMemory(t, "1/1h"), nil)),
			func(l *penstock.Limiter) grpc.DialOption {
				return grpc.WithUnaryInterceptor(grpclimit.UnaryClient(l, nil))
			},
			func(ctx context.Context, c pb.TestServiceClient) error {
				_, err := c.UnaryCall(ctx, &pb.SimpleRequest{})
				return err
			},
		},
		"streams": {
			grpc.StreamInterceptor(grpclimit.StreamServer(inMemory(t, "1/1h"), nil)),
			func(l *penstock.Limiter) grpc.DialOption {
				return grpc.WithStreamInterceptor(grpclimit.StreamClient(l, nil))
			},
			stream,
		},
		"messages": {
			grpc.StreamInterceptor(grpclimit.MessageServer(inMemory(t, "1/1h"), nil)),
			func(l *penstock.Limiter) grpc.DialOption {
				return grpc.WithStreamInterceptor(grpclimit.MessageClient(l, nil))
			},
			stream,
		},
	} {
		lim := inMemory(t, "1000/1s")
		c := connect(t, serve(t, test.server), test.client(lim))
		if err := test.call(t.Context(), c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := test.call(t.Context(), c); status.Code(err) != exhausted {
			t.Errorf("%s: one too many: %v", name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := test.call(ctx, c); status.Code(err) != codes.DeadlineExceeded || !errors.Is(err, penstock.ErrDeadline) {
			t.Errorf("%s: with a minute, when the server wants an hour: %v", name, err)
		}
		cancel()
	}
}

// stream sends one message in a streaming call.
func stream(ctx context.Context, c pb.TestServiceClient) error {
	s, err := c.StreamingInputCall(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&pb.StreamingInputCallRequest{}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = s.CloseAndRecv()
	return err
}

// A server is believed up to MaxPause, and calls under other keys do not wait.
func TestClientMaxPauseBoundsRetryInfo(t *testing.T) {
	target := serve(t, grpc.UnaryInterceptor(grpclimit.UnaryServer(inMemory(t, "1/1h"), nil)))
	c := connect(t, target, grpc.WithUnaryInterceptor(grpclimit.UnaryClient(inMemory(t, "1000/1s"), &grpclimit.ClientOptions{
		MaxPause: 100 * time.Millisecond,
		Key: func(ctx context.Context, _ grpclimit.Call) string {
			md, _ := metadata.FromOutgoingContext(ctx)
			return fmt.Sprint(md.Get("x-account"))
		},
	})))
	start := time.Now() // the pause begins with the response, which may be long past when ask returns
	expect(t, "one too many", ask(t, c, 2, "x-account", "a"), codes.OK, exhausted)
	expect(t, "after a pause", ask(t, c, 1, "x-account", "a"), exhausted)
	if got := time.Since(start); got < 100*time.Millisecond {
		t.Errorf("went after %v", got)
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-account", "b"), 50*time.Millisecond)
	defer cancel()
	if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{}); errors.Is(err, penstock.ErrDeadline) {
		t.Errorf("another account waits: %v", err)
	}
}

func TestClientRejectsNegativeCosts(t *testing.T) {
	c := connect(t, serve(t), grpc.WithUnaryInterceptor(grpclimit.UnaryClient(inMemory(t, "1/1h"), &grpclimit.ClientOptions{
		Cost: func(context.Context, grpclimit.Call) int64 { return -1 },
	})))
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != codes.InvalidArgument || !errors.Is(err, penstock.ErrBadCost) {
		t.Error(err)
	}
}

func TestClientBoundsWaitingCalls(t *testing.T) {
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
