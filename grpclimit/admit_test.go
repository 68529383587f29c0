package grpclimit_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/grpclimit"
	"github.com/penstock-io/penstock/overload"
)

// fullGate returns a gate with one place, which is taken.
func fullGate(t *testing.T) (*overload.Gate, overload.Pass) {
	t.Helper()
	g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: -1})
	pass, err := g.Enter(t.Context(), overload.Normal)
	if err != nil {
		t.Fatal(err)
	}
	return g, pass
}

func TestUnaryAdmitRefusesWithPushback(t *testing.T) {
	g, pass := fullGate(t)
	c := connect(t, serve(t, grpc.UnaryInterceptor(grpclimit.UnaryAdmit(g, nil))))
	var trailer metadata.MD
	_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}, grpc.Trailer(&trailer))
	if status.Code(err) != codes.Unavailable || len(status.Convert(err).Details()) != 1 {
		t.Errorf("full gate: %v, want UNAVAILABLE with a RetryInfo", err)
	}
	pushback := trailer.Get("grpc-retry-pushback-ms")
	if len(pushback) != 1 {
		t.Fatalf("trailer: %v, want a pushback", trailer)
	}
	if ms, err := strconv.Atoi(pushback[0]); err != nil || ms < 1000 {
		t.Errorf("pushback: %q, want at least 1000", pushback[0])
	}
	pass.Leave(overload.Success)
	expect(t, "free gate", ask(t, c, 2), codes.OK, codes.OK)
	if n := g.Stats().InFlight; n != 0 {
		t.Errorf("in flight after the calls: got %d, want 0", n)
	}
}

// On one processor handlers that only compute run one after the other. The gate has to see
// the calls that wait meanwhile.
func TestUnaryAdmitSeesCallsThatWaitForProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	admit := grpclimit.UnaryAdmit(overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: -1}), nil)
	handler := func(context.Context, any) (any, error) { return nil, nil }
	var refused atomic.Int64
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if _, err := admit(t.Context(), nil, &grpc.UnaryServerInfo{}, handler); status.Code(err) == codes.Unavailable {
				refused.Add(1)
			}
		})
	}
	calls.Wait()
	if n := refused.Load(); n == 0 || n == 20 {
		t.Errorf("refused: got %d of 20 calls to a gate for one, want some", n)
	}
}

func TestUnaryAdmitAnswersInstead(t *testing.T) {
	g, _ := fullGate(t)
	o := &grpclimit.AdmitOptions{
		Priority: func(context.Context, grpclimit.Call) overload.Priority { return overload.Critical },
		Instead: func(_ context.Context, _ grpclimit.Call, err error) (any, error) {
			var full *overload.FullError
			if !errors.As(err, &full) || full.Priority != overload.Critical {
				t.Errorf("error: %v, want a FullError with critical priority", err)
			}
			return &pb.SimpleResponse{Username: "cached"}, nil
		},
	}
	c := connect(t, serve(t, grpc.UnaryInterceptor(grpclimit.UnaryAdmit(g, o))))
	reply, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
	if err != nil || reply.GetUsername() != "cached" {
		t.Errorf("reply: %v, %v, want the cached one", reply, err)
	}
}

func TestStreamAdmitHoldsPlaceForWholeCall(t *testing.T) {
	g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: -1})
	c := connect(t, serve(t, grpc.StreamInterceptor(grpclimit.StreamAdmit(g, nil))))
	first, err := c.StreamingInputCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Send(&pb.StreamingInputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	for g.Stats().InFlight == 0 { // until the server has got it
		if t.Context().Err() != nil {
			t.Fatal("the stream did not begin")
		}
	}
	second, err := c.StreamingInputCall(t.Context())
	if err == nil {
		_, err = second.CloseAndRecv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("second stream: %v, want UNAVAILABLE", err)
	}
	if _, err := first.CloseAndRecv(); err != nil {
		t.Errorf("first stream: %v", err)
	}
}

func failing(code codes.Code) grpc.ServerOption {
	return grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, status.Error(code, "no")
	})
}

func TestUnaryBreakStopsCallsToFailingServer(t *testing.T) {
	group := overload.NewBreakerGroup(nil)
	c := connect(t, serve(t, failing(codes.Internal)), grpc.WithUnaryInterceptor(grpclimit.UnaryBreak(group, nil)))
	for range 20 {
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
		if errors.Is(err, overload.ErrOpen) {
			if status.Code(err) != codes.Unavailable {
				t.Errorf("code of %v: got %v, want UNAVAILABLE", err, status.Code(err))
			}
			return
		}
	}
	t.Error("20 failures did not open the breaker")
}

func TestUnaryBreakIgnoresWrongCalls(t *testing.T) {
	group := overload.NewBreakerGroup(nil)
	for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted} {
		c := connect(t, serve(t, failing(code)), grpc.WithUnaryInterceptor(grpclimit.UnaryBreak(group, nil)))
		ask(t, c, 20)
	}
	if open := group.Open(); len(open) != 0 {
		t.Errorf("open breakers: %v, want none", open)
	}
}

func TestUnaryBreakAnswersInstead(t *testing.T) {
	o := &grpclimit.BreakOptions{Instead: func(_ context.Context, _ grpclimit.Call, reply any, _ error) error {
		reply.(*pb.SimpleResponse).Username = "cached"
		return nil
	}}
	c := connect(t, serve(t, failing(codes.Unavailable)), grpc.WithUnaryInterceptor(grpclimit.UnaryBreak(nil, o)))
	for range 20 {
		reply, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
		if err != nil || reply.GetUsername() != "cached" {
			t.Fatalf("reply: %v, %v, want the cached one", reply, err)
		}
	}
}
