package grpclimit

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/overload"
)

// StreamBreak returns an interceptor that does not open streams to a service that
// fails or hangs; otherwise it works like [UnaryBreak].
//
// A stream has failed if its status says so, whenever it ends, or if the server has
// sent neither header nor message within [overload.BreakerOptions].Slow after it had
// what it needs to answer: the request, the first of several messages of both
// sides, or the last message of a client that alone sends several. Once the server
// has answered, a stream may take as long as it likes. A server that is silent
// until there is news should send its header at once; or else skip its streams, see
// [BreakOptions].Skip. A stream that its caller canceled, or ended by closing the
// connection, counts as neither success nor failure, and so does one whose deadline
// passed while the server had nothing to answer.
func StreamBreak(g *overload.BreakerGroup, o *BreakOptions) grpc.StreamClientInterceptor {
	return newBreaking(g, o).stream
}

func (b *breaking) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	call := Call{Method: method}
	if b.skips(ctx, call) {
		return open(ctx, desc, cc, method, opts...)
	}
	admitted, err := b.group.AllowStream(b.keyOf(ctx, call, cc))
	if err != nil {
		return b.InsteadStream(ctx, desc, call, asStatus(err))
	}
	s := &breakStream{breaking: b, call: admitted, ctx: ctx, desc: desc}
	s.isDue.Store(true)
	opened := false
	defer func() {
		if !opened {
			admitted.Done(overload.Failure) // of a panic: any other outcome was reported before
		}
	}()
	if !desc.ClientStreams {
		s.await()
	}
	s.ClientStream, err = open(ctx, desc, cc, method, append(opts[:len(opts):len(opts)], grpc.OnFinish(s.finish))...)
	if err != nil {
		s.finish(err)
		return b.InsteadStream(ctx, desc, call, err)
	}
	opened = true
	s.isDue.Store(!desc.ClientStreams)
	return s, nil
}

// A breakStream reports to a breaker what the server does. The end of the stream is
// reported by gRPC, which knows of it also if the caller no longer reads.
type breakStream struct {
	grpc.ClientStream
	*breaking
	call *overload.StreamCall
	ctx  context.Context
	desc *grpc.StreamDesc

	begun atomic.Bool // whether the server had to answer, or has
	isDue atomic.Bool // whether it has to now
}

func (s *breakStream) await() {
	if s.begun.CompareAndSwap(false, true) {
		s.isDue.Store(true)
		s.call.Await()
	}
}

func (s *breakStream) answered() {
	s.begun.Store(true)
	s.isDue.Store(false)
	s.call.Answered()
}

// SendMsg sends a message, which the server may have to answer.
func (s *breakStream) SendMsg(m any) error {
	if s.desc.ServerStreams {
		s.await()
	}
	return s.ClientStream.SendMsg(m)
}

// CloseSend ends the messages, which the server has to answer.
func (s *breakStream) CloseSend() error {
	s.await()
	return s.ClientStream.CloseSend()
}

// Header waits for the header of the server. It is nil if the server sent only a
// status.
func (s *breakStream) Header() (metadata.MD, error) {
	header, err := s.ClientStream.Header()
	if header != nil {
		s.answered()
	}
	return header, err
}

// RecvMsg receives a message, or the call's final status.
func (s *breakStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil { // if another interceptor dropped the options
		s.finish(err)
		return err
	}
	s.answered()
	return nil
}

// finish reports the status of the stream.
func (s *breakStream) finish(err error) {
	outcome := overload.Success
	switch {
	case err == nil || errors.Is(err, io.EOF):
	case s.isNeutral(err):
		outcome = overload.Canceled
	case s.IsFailure(err):
		outcome = overload.Failure
	}
	s.call.Done(outcome)
}

func (s *breakStream) isNeutral(err error) bool {
	switch {
	case errors.Is(s.ctx.Err(), context.Canceled) || status.Code(err) == codes.Canceled:
		return true
	case errors.Is(s.ctx.Err(), context.DeadlineExceeded):
		return !s.isDue.Load()
	}
	return false
}
