package grpclimit

import (
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

// ErrTooManyWaiting means that a call was not made, because too many others were
// waiting for their turn already. Its code is RESOURCE_EXHAUSTED.
var ErrTooManyWaiting = pacing.ErrTooManyWaiting

// ClientOptions say what the interceptors of a client do. The zero ClientOptions
// pace the calls to each target.
type ClientOptions struct {
	// Key says whose quota a call uses. Default: the target that the
	// connection was made for.
	Key func(context.Context, Call) string

	// Cost says how much of it. Less than 0 is an error. Default: 1.
	Cost func(context.Context, Call) int64

	// MaxWaiting is how many calls may wait for their turn at once; more fail
	// with [ErrTooManyWaiting]. Those that go at once, and those that are
	// under way, do not count. Default: 1000.
	MaxWaiting int

	// MaxPause is the longest that a server's word is taken for, when it says
	// how long to wait. Default: 10 minutes.
	MaxPause time.Duration
}

// UnaryClient returns an interceptor that lets each unary call wait until lim lets
// it go: on a bucket in the order in which calls came, on a window in no particular
// order, and with a store that is shared, in turn with those of all other processes.
// Where a server fails a call and says in a RetryInfo when to come back, as
// [UnaryServer] does, this process's calls under the same key wait for that, too.
// The call that failed is not repeated.
//
// Waiting ends with the context of the call. If its deadline is too near, the call
// fails at once with DEADLINE_EXCEEDED, and costs nothing. If the store fails, so
// does the call, with UNAVAILABLE.
func UnaryClient(lim *penstock.Limiter, o *ClientOptions) grpc.UnaryClientInterceptor {
	p := newPacer(lim, o)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		key, err := p.wait(ctx, Call{method, req}, cc.Target())
		if err != nil {
			return err
		}
		return p.heed(key, invoke(ctx, method, req, reply, cc, opts...))
	}
}

// StreamClient returns an interceptor that lets each streaming call wait, once,
// before it begins. What is said of [UnaryClient] is true of it, too.
func StreamClient(lim *penstock.Limiter, o *ClientOptions) grpc.StreamClientInterceptor {
	p := newPacer(lim, o)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		key, err := p.wait(ctx, Call{Method: method}, cc.Target())
		if err != nil {
			return nil, err
		}
		cs, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, p.heed(key, err)
		}
		return &heedingStream{ClientStream: cs, pacer: p, key: key}, nil
	}
}

// MessageClient returns an interceptor that lets each message which is sent in a
// streaming call wait. What is said of [UnaryClient] is true of it, too.
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

// A heedingStream minds what the server says when it ends the call.
type heedingStream struct {
	grpc.ClientStream
	pacer *pacer
	key   string
}

// RecvMsg receives a message, or why there are no more.
func (s *heedingStream) RecvMsg(m any) error { return s.pacer.heed(s.key, s.ClientStream.RecvMsg(m)) }

// A pacedStream waits before it sends.
type pacedStream struct {
	grpc.ClientStream
	pacer          *pacer
	method, target string
	ctx            context.Context // to ask the stream for it would keep gRPC from repeating the call
	end            func()
	answersOnce    bool                   // so that nothing comes after the first message
	key            atomic.Pointer[string] // that the last message was sent under
}

// SendMsg sends a message when its turn has come. If that fails the call has ended,
// as callers may expect, who need not do anything more about it.
func (s *pacedStream) SendMsg(m any) error {
	key, err := s.pacer.wait(s.ctx, Call{s.method, m}, s.target)
	if err != nil {
		s.end()
		return err
	}
	s.key.Store(&key)
	return s.ClientStream.SendMsg(m)
}

// RecvMsg receives a message, or why there are no more.
func (s *pacedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil || s.answersOnce {
		s.end()
	}
	if key := s.key.Load(); key != nil {
		_ = s.pacer.heed(*key, err)
	}
	return err
}

// A pacer lets calls wait.
type pacer struct {
	ClientOptions
	line *pacing.Queue
}

func newPacer(lim *penstock.Limiter, o *ClientOptions) *pacer {
	if o == nil {
		o = &ClientOptions{}
	}
	return &pacer{ClientOptions: *o, line: pacing.NewQueue(lim, o.MaxWaiting, o.MaxPause)}
}

// wait returns when the call may go, and under which key.
func (p *pacer) wait(ctx context.Context, call Call, target string) (key string, err error) {
	key, cost := target, int64(1)
	if p.Key != nil {
		key = p.Key(ctx, call)
	}
	if p.Cost != nil {
		cost = p.Cost(ctx, call)
	}
	if err := p.line.Wait(ctx, key, cost); err != nil {
		return key, asStatus(err)
	}
	return key, nil
}

// heed lets further calls wait for as long as a server says in an error, which it
// returns.
func (p *pacer) heed(key string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			p.line.Pause(key, retry.GetRetryDelay().AsDuration())
		}
	}
	return err
}
