package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/pacing"
)

// ErrTooManyWaiting means that a call was not made because too many others were
// waiting. Its code is RESOURCE_EXHAUSTED.
var ErrTooManyWaiting = pacing.ErrTooManyWaiting

// ClientOptions configure the interceptors of a client. The zero ClientOptions
// pace the calls to each target.
type ClientOptions struct {
	// Key returns the quota that a call uses. Default: the target of the
	// connection.
	Key func(context.Context, Call) string

	// Cost returns how much of it the call uses. A negative cost is an error.
	// Default: 1.
	Cost func(context.Context, Call) int64

	// MaxWaiting is how many calls may wait at once; more fail with
	// [ErrTooManyWaiting]. Calls that need not wait, and those in flight, do
	// not count. Default: 1000.
	MaxWaiting int

	// MaxPause is the longest pause that a server can ask for. Default: 10
	// minutes.
	MaxPause time.Duration
}

// UnaryClient returns an interceptor that delays each unary call until lim allows
// it: in order of arrival for a bucket, in no particular order for a window, and
// together with other processes if the store is shared. If a server fails a call
// with a RetryInfo, as [UnaryServer] does, this process's calls under the same
// key wait for that too. The failed call is not retried.
//
// Waiting ends with the call's context. If its deadline is too near, the call
// fails at once with DEADLINE_EXCEEDED and costs nothing. If the store fails, the
// call fails with UNAVAILABLE.
func UnaryClient(lim *penstock.Limiter, o *ClientOptions) grpc.UnaryClientInterceptor {
	p := newPacer(lim, o)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		key, err := p.wait(ctx, Call{method, req}, cc.Target())
		if err != nil {
			return err
		}
		return p.honourRetryInfo(key, invoke(ctx, method, req, reply, cc, opts...))
	}
}

// StreamClient returns an interceptor that delays each streaming call once,
// before it begins; otherwise it works like [UnaryClient].
func StreamClient(lim *penstock.Limiter, o *ClientOptions) grpc.StreamClientInterceptor {
	p := newPacer(lim, o)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		key, err := p.wait(ctx, Call{Method: method}, cc.Target())
		if err != nil {
			return nil, err
		}
		cs, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, p.honourRetryInfo(key, err)
		}
		return &retryInfoStream{ClientStream: cs, pacer: p, key: key}, nil
	}
}

// MessageClient returns an interceptor that delays each message sent in a
// streaming call; otherwise it works like [UnaryClient].
func MessageClient(lim *penstock.Limiter, o *ClientOptions) grpc.StreamClientInterceptor {
	p := newPacer(lim, o)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, end := context.WithCancel(ctx)
		cs, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			end()
			return nil, err
		}
		return &pacedStream{
			ClientStream: cs, pacer: p, method: method, target: cc.Target(),
			ctx: ctx, end: end, answersOnce: !desc.ServerStreams,
		}, nil
	}
}

// A retryInfoStream honours the RetryInfo with which a server ends a call.
type retryInfoStream struct {
	grpc.ClientStream
	pacer *pacer
	key   string
}

// RecvMsg receives a message, or the call's final status.
func (s *retryInfoStream) RecvMsg(m any) error {
	return s.pacer.honourRetryInfo(s.key, s.ClientStream.RecvMsg(m))
}

// A pacedStream waits before it sends.
type pacedStream struct {
	grpc.ClientStream
	pacer          *pacer
	method, target string
	ctx            context.Context // the stream's own Context would disable gRPC's retries
	end            func()
	answersOnce    bool                   // nothing follows the first message
	key            atomic.Pointer[string] // of the last message sent
}

// SendMsg sends a message when the limits allow it. If that fails the call is
// cancelled, because callers may stop reading after an error.
func (s *pacedStream) SendMsg(m any) error {
	key, err := s.pacer.wait(s.ctx, Call{s.method, m}, s.target)
	if err != nil {
		s.end()
		return err
	}
	s.key.Store(&key)
	return s.ClientStream.SendMsg(m)
}

// RecvMsg receives a message, or the call's final status.
func (s *pacedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil || s.answersOnce {
		s.end()
	}
	if key := s.key.Load(); key != nil {
		_ = s.pacer.honourRetryInfo(*key, err)
	}
	return err
}

// A pacer delays calls.
type pacer struct {
	ClientOptions
	queue *pacing.Queue
}

func newPacer(lim *penstock.Limiter, o *ClientOptions) *pacer {
	o = cmp.Or(o, &ClientOptions{})
	return &pacer{ClientOptions: *o, queue: pacing.NewQueue(lim, o.MaxWaiting, o.MaxPause)}
}

// wait returns when the call may be made, and its key.
func (p *pacer) wait(ctx context.Context, call Call, target string) (key string, err error) {
	key, cost := target, int64(1)
	if p.Key != nil {
		key = p.Key(ctx, call)
	}
	if p.Cost != nil {
		cost = p.Cost(ctx, call)
	}
	if err := p.queue.Wait(ctx, key, cost); err != nil {
		return key, asStatus(err)
	}
	return key, nil
}

// honourRetryInfo pauses further calls for as long as a server's error asks, and
// returns that error.
func (p *pacer) honourRetryInfo(key string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			p.queue.Pause(key, retry.GetRetryDelay().AsDuration())
		}
	}
	return err
}
