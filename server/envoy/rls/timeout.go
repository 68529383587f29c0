package rls

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// callTimeout bounds a call, from its headers to the response, and the time to the first
// message of a stream that goes on. gRPC has no such limit, and keeps the received part of a
// message in memory.
const callTimeout = 10 * time.Second

// beginCall bounds a call, and begins its span if its caller samples it: here the headers need not be copied.
func (o *Options) beginCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	ctx, err := setCallTimeout(ctx, info)
	if o.Tracer != nil && info.FullMethodName == fullMethod {
		ctx, _ = o.Tracer.Start(ctx, "grpc", info.Header["traceparent"])
	}
	return ctx, err
}

// setCallTimeout bounds calls, but for streams that go on: see boundFirstMessage.
func setCallTimeout(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != fullMethod && !isShort(info.FullMethodName) {
		return ctx, nil
	}
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= callTimeout {
		return ctx, nil // another context would cost more than parsing the request
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	_ = cancel // the parent is the stream's context, which gRPC cancels after the call
	return ctx, nil
}

// isShort reports whether a method of health checks or reflection has an answer that ends.
// Clients of reflection ask what they need at once, and open another stream if there is more.
func isShort(method string) bool {
	switch method {
	case healthpb.Health_Check_FullMethodName, healthpb.Health_List_FullMethodName,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo":
		return true
	}
	return false
}

// boundFirstMessage ends streams whose first message does not arrive in time. Nothing else
// bounds Watch, nor the streams of Options.Services.
func boundFirstMessage(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if isShort(info.FullMethod) {
		return handler(srv, stream)
	}
	return handler(srv, &boundedStream{ServerStream: stream})
}

// A boundedStream receives its first message in callTimeout or never.
type boundedStream struct {
	grpc.ServerStream
	received bool
}

var errFirstMessage = status.Error(codes.DeadlineExceeded, "no message has arrived in time")

// RecvMsg receives a message. A handler returns after an error, which ends the stream and so
// the goroutine.
func (s *boundedStream) RecvMsg(m any) error {
	if s.received {
		return s.ServerStream.RecvMsg(m)
	}
	s.received = true
	timer := time.NewTimer(callTimeout)
	defer timer.Stop()
	done := make(chan error, 1)
	go func() { done <- s.ServerStream.RecvMsg(m) }()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errFirstMessage
	}
}
