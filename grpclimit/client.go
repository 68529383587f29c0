package grpclimit

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/penstock-io/penstock"
)

// ErrTooManyWaiting means that a call was not made, because too many others were
// waiting for their turn already. Its code is RESOURCE_EXHAUSTED.
var ErrTooManyWaiting = errors.New("too many calls are waiting")

// ClientOptions say what the interceptors of a client do. The zero ClientOptions
// pace the calls to each target.
type ClientOptions struct {
	// Key says whose quota a call uses. Default: the target that the
	// connection was made for.
	Key func(context.Context, Call) string

	// Cost says how much of it. Default: 1.
	Cost func(context.Context, Call) int64

	// MaxWaiting is how many calls may wait for their turn at once; more fail
	// with [ErrTooManyWaiting]. Default: 1000.
	MaxWaiting int
}

// UnaryClient returns an interceptor that lets each unary call wait until lim lets
// it go, in the order in which calls came, and with a store that is shared, in turn
// with those of all other processes.
//
// Waiting ends with the context of the call. If its deadline is too near, the call
// fails at once with DEADLINE_EXCEEDED, and costs nothing. If the store fails, so
// does the call, with UNAVAILABLE.
func UnaryClient(lim *penstock.Limiter, o *ClientOptions) grpc.UnaryClientInterceptor {
	l := newLine(lim, o)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := l.wait(ctx, Call{method, req}, cc.Target()); err != nil {
			return err
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

// StreamClient returns an interceptor that lets each streaming call wait, once,
// before it begins. What is said of [UnaryClient] is true of it, too.
func StreamClient(lim *penstock.Limiter, o *ClientOptions) grpc.StreamClientInterceptor {
	l := newLine(lim, o)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := l.wait(ctx, Call{Method: method}, cc.Target()); err != nil {
			return nil, err
		}
		return open(ctx, desc, cc, method, opts...)
	}
}

// MessageClient returns an interceptor that lets each message which is sent in a
// streaming call wait.
func MessageClient(lim *penstock.Limiter, o *ClientOptions) grpc.StreamClientInterceptor {
	l := newLine(lim, o)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		cs, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, err
		}
		return &pacedStream{ClientStream: cs, line: l, method: method, target: cc.Target()}, nil
	}
}

// A pacedStream waits before it sends.
type pacedStream struct {
	grpc.ClientStream
	line           *line
	method, target string
}

// SendMsg sends a message when its turn has come.
func (s *pacedStream) SendMsg(m any) error {
	if err := s.line.wait(s.Context(), Call{s.method, m}, s.target); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}

// A line is where calls wait.
type line struct {
	ClientOptions
	limiter *penstock.Limiter
	waiting atomic.Int64
}

func newLine(lim *penstock.Limiter, o *ClientOptions) *line {
	if o == nil {
		o = &ClientOptions{}
	}
	l := &line{ClientOptions: *o, limiter: lim}
	if l.MaxWaiting <= 0 {
		l.MaxWaiting = 1000
	}
	return l
}

// wait returns when the call may go.
func (l *line) wait(ctx context.Context, call Call, key string) error {
	defer l.waiting.Add(-1)
	if l.waiting.Add(1) > int64(l.MaxWaiting) {
		return asStatus(ErrTooManyWaiting)
	}
	if l.Key != nil {
		key = l.Key(ctx, call)
	}
	cost := int64(1)
	if l.Cost != nil {
		cost = l.Cost(ctx, call)
	}
	if err := l.limiter.WaitN(ctx, key, cost); err != nil {
		return asStatus(err)
	}
	return nil
}
