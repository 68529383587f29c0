package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/grpclimit"
	"github.com/penstock-io/penstock/overload"
)

// A breakFixture opens streams to a real server through a breaker, on a clock that only the
// test moves.
type breakFixture struct {
	*testing.T
	pb.TestServiceClient
	conn    *grpc.ClientConn
	group   *overload.BreakerGroup
	elapsed atomic.Int64
}

// newBreakFixture has a server whose streams are all handled by the function.
func newBreakFixture(t *testing.T, o *grpclimit.BreakOptions, handle func(grpc.ServerStream) error) *breakFixture {
	t.Helper()
	f := &breakFixture{T: t}
	f.group = overload.NewBreakerGroup(&overload.BreakerGroupOptions{MaxKeys: 1, BreakerOptions: overload.BreakerOptions{
		Now: func() time.Time { return time.Unix(1_000_000, f.elapsed.Load()) },
	}})
	target := serve(t, grpc.StreamInterceptor(func(_ any, s grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
		return handle(s)
	}))
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(grpclimit.StreamBreak(f.group, o)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	f.conn, f.TestServiceClient = conn, pb.NewTestServiceClient(conn)
	return f
}

func (f *breakFixture) pass(d time.Duration) { f.elapsed.Add(int64(d)) }

// download opens a stream of the server's messages.
func (f *breakFixture) download(ctx context.Context) (pb.TestService_StreamingOutputCallClient, error) {
	return f.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{})
}

func (f *breakFixture) expectOpen(what string, want bool) {
	f.Helper()
	if got := len(f.group.Open()) > 0; got != want {
		f.Errorf("%s: is the breaker open: got %v, want %v", what, got, want)
	}
}

// awaitNoneInFlight waits until the breaker makes room for that of another key, as only a
// breaker without calls in flight does. It opens that one, so it is the last thing in a test.
func (f *breakFixture) awaitNoneInFlight() {
	f.Helper()
	for deadline := time.Now().Add(time.Minute); len(f.group.Open()) == 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatal("a stream that ended is still in flight")
		}
		for range 9 {
			if c, err := f.group.Allow("another"); err == nil {
				c.Done(overload.Failure)
			}
		}
	}
}

func wait(s grpc.ServerStream) error {
	<-s.Context().Done()
	return status.FromContextError(s.Context().Err()).Err()
}

func answerAndWait(s grpc.ServerStream) error {
	if err := s.SendMsg(&pb.StreamingOutputCallResponse{}); err != nil {
		return err
	}
	return wait(s)
}

func TestStreamBreakStopsStreamsToFailingServer(t *testing.T) {
	f := newBreakFixture(t, nil, func(grpc.ServerStream) error { return status.Error(codes.Internal, "no") })
	for range 9 {
		s, err := f.download(t.Context())
		if err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != codes.Internal {
			t.Fatalf("stream: %v, want INTERNAL", err)
		}
	}
	_, err := f.download(t.Context())
	if !errors.Is(err, overload.ErrOpen) || status.Code(err) != codes.Unavailable {
		t.Errorf("after nine failures: %v, want UNAVAILABLE with an OpenError", err)
	}
}

func TestStreamBreakCountsFailureAfterAnswer(t *testing.T) {
	f := newBreakFixture(t, nil, func(s grpc.ServerStream) error {
		if err := s.SendMsg(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "gone")
	})
	for range 9 {
		f.expectOpen("before nine failures", false)
		s, err := f.download(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
			t.Fatalf("second message: %v, want UNAVAILABLE", err)
		}
	}
	f.expectOpen("nine streams that failed after a message", true)
}

func TestStreamBreakNoticesStreamsThatHang(t *testing.T) {
	f := newBreakFixture(t, nil, wait)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 9 {
		if _, err := f.download(ctx); err != nil {
			t.Fatal(err)
		}
	}
	f.pass(2 * time.Second)
	if _, err := f.download(ctx); !errors.Is(err, overload.ErrOpen) {
		t.Errorf("nine streams hang: %v, want an OpenError", err)
	}
}

func TestStreamBreakLetsAnsweredStreamsStayOpen(t *testing.T) {
	for name, handle := range map[string]func(grpc.ServerStream) error{
		"message": answerAndWait,
		"header": func(s grpc.ServerStream) error {
			if err := s.SendHeader(metadata.Pairs("a", "b")); err != nil {
				return err
			}
			return wait(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newBreakFixture(t, nil, handle)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for range 9 {
				s, err := f.download(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if name == "header" {
					_, err = s.Header()
				} else {
					_, err = s.Recv()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			f.pass(time.Hour)
			if s, err := f.download(ctx); err != nil {
				t.Errorf("after an hour: %v, %v", s, err)
			}
			f.expectOpen("nine streams that were answered", false)
		})
	}
}

// A server that waits for its client does not hang.
func TestStreamBreakWaitsForClientsMessages(t *testing.T) {
	f := newBreakFixture(t, nil, wait)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var uploads []pb.TestService_StreamingInputCallClient
	var dialogs []pb.TestService_FullDuplexCallClient
	for range 9 {
		upload, err := f.StreamingInputCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		dialog, err := f.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := upload.Send(&pb.StreamingInputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		uploads, dialogs = append(uploads, upload), append(dialogs, dialog)
	}
	f.pass(time.Hour)
	if _, err := f.FullDuplexCall(ctx); err != nil {
		t.Errorf("before the clients have sent all: %v", err)
	}
	for i := range 5 {
		if err := uploads[i].CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := dialogs[i].Send(&pb.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	f.pass(2 * time.Second)
	if _, err := f.FullDuplexCall(ctx); !errors.Is(err, overload.ErrOpen) {
		t.Errorf("ten streams hang: %v, want an OpenError", err)
	}
}

func TestStreamBreakAbandonedStreamLeavesNothing(t *testing.T) {
	for name, handle := range map[string]func(grpc.ServerStream) error{"hung": wait, "answered": answerAndWait} {
		t.Run(name, func(t *testing.T) {
			f := newBreakFixture(t, nil, handle)
			ctx, cancel := context.WithCancel(t.Context())
			for range 20 {
				s, err := f.download(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if name == "answered" {
					if _, err := s.Recv(); err != nil {
						t.Fatal(err)
					}
				}
			}
			cancel() // and the callers never read again
			f.awaitNoneInFlight()
		})
	}
}

func TestStreamBreakClosedConnectionIsNeutral(t *testing.T) {
	f := newBreakFixture(t, nil, wait)
	for range 20 {
		if _, err := f.download(context.Background()); err != nil { //nolint:usetesting // that of the test ends too late to matter
			t.Fatal(err)
		}
	}
	if err := f.conn.Close(); err != nil {
		t.Fatal(err)
	}
	f.awaitNoneInFlight()
	if open := f.group.Open(); len(open) != 1 || open[0] != "another" {
		t.Errorf("open: %q, want only that of another key", open)
	}
}

// An expiring context has a deadline that passes when the test says so.
type expiring struct {
	context.Context
	passed chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.passed }
func (e expiring) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A deadline is a failure of a server that owed an answer, and not of one that had given it.
func TestStreamBreakDeadlineOfAnsweredStreamIsNeutral(t *testing.T) {
	for name, handle := range map[string]func(grpc.ServerStream) error{"hung": wait, "answered": answerAndWait} {
		t.Run(name, func(t *testing.T) {
			f := newBreakFixture(t, nil, handle)
			for range 9 {
				ctx := expiring{t.Context(), make(chan struct{})}
				s, err := f.download(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if name == "answered" {
					if _, err := s.Recv(); err != nil {
						t.Fatal(err)
					}
				}
				close(ctx.passed)
				if _, err := s.Recv(); status.Code(err) != codes.DeadlineExceeded {
					t.Fatalf("stream: %v, want DEADLINE_EXCEEDED", err)
				}
			}
			f.expectOpen("nine deadlines passed", name == "hung")
		})
	}
}

func TestStreamBreakOpensInsteadStream(t *testing.T) {
	var other *grpc.ClientConn
	o := &grpclimit.BreakOptions{InsteadStream: func(ctx context.Context, desc *grpc.StreamDesc, call grpclimit.Call, err error) (grpc.ClientStream, error) {
		if !errors.Is(err, overload.ErrOpen) {
			t.Errorf("error: %v, want an OpenError", err)
		}
		return other.NewStream(ctx, desc, call.Method)
	}}
	f := newBreakFixture(t, o, func(grpc.ServerStream) error { return status.Error(codes.Unavailable, "no") })
	other, err := grpc.NewClient(serve(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	for range 9 {
		if s, err := f.StreamingInputCall(t.Context()); err == nil {
			_, _ = s.CloseAndRecv()
		}
	}
	f.expectOpen("nine failures", true)
	s, err := f.StreamingInputCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CloseAndRecv(); err != nil {
		t.Errorf("stream of the other service: %v", err)
	}
}

func TestBreakSkipsCalls(t *testing.T) {
	skip := &grpclimit.BreakOptions{Skip: func(context.Context, grpclimit.Call) bool { return true }}
	f := newBreakFixture(t, skip, func(grpc.ServerStream) error { return status.Error(codes.Internal, "no") })
	unary := connect(t, serve(t, failing(codes.Internal)), grpc.WithUnaryInterceptor(grpclimit.UnaryBreak(f.group, skip)))
	for range 20 {
		s, err := f.download(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); errors.Is(err, io.EOF) || err == nil {
			t.Errorf("stream: %v, want the server's error", err)
		}
	}
	ask(t, unary, 20)
	f.expectOpen("calls that are skipped", false)
}
