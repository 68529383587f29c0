// Package kratoslimit limits services that are built with kratos, over HTTP and gRPC alike.
//
//	http.NewServer(http.Middleware(kratoslimit.Adapt(grpclimit.UnaryServer(lim, nil))))
package kratoslimit

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/go-kratos/kratos/v2/errors"
	"github.com/go-kratos/kratos/v2/middleware"
	"github.com/go-kratos/kratos/v2/transport"
	khttp "github.com/go-kratos/kratos/v2/transport/http"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Adapt converts an interceptor of a gRPC server, such as that of package grpclimit, to kratos's middleware. The
// method of a call is its operation. Over HTTP the metadata is the header of the request, with names in lower
// case, and a denial has status 429, Retry-After, and the reason RATELIMIT.
func Adapt(intercept grpc.UnaryServerInterceptor) middleware.Middleware {
	return func(next middleware.Handler) middleware.Handler {
		return func(ctx context.Context, req any) (any, error) {
			served, info := false, &grpc.UnaryServerInfo{}
			handler := func(ctx context.Context, req any) (any, error) {
				served = true
				return next(ctx, req)
			}
			tr, known := transport.FromServerContext(ctx)
			if known {
				info.FullMethod = tr.Operation()
			}
			r, overHTTP := khttp.RequestFromServerContext(ctx)
			if !overHTTP {
				return intercept(ctx, req, info, handler)
			}
			reply, err := intercept(incoming(ctx, r), req, info, handler)
			if err != nil && !served {
				err = refusal(err, tr.ReplyHeader())
			}
			return reply, err
		}
	}
}

// incoming returns the context that a gRPC server would have given the call.
func incoming(ctx context.Context, r *http.Request) context.Context {
	md := metadata.MD{}
	for name, values := range r.Header {
		md[strings.ToLower(name)] = values
	}
	if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: net.TCPAddrFromAddrPort(from)})
	}
	return metadata.NewIncomingContext(ctx, md)
}

// refusal returns the error of a call over HTTP that was not served.
func refusal(err error, reply transport.Header) error {
	s, answer := status.Convert(err), errors.FromError(err)
	if s.Code() == codes.ResourceExhausted {
		answer.Reason = "RATELIMIT"
	}
	for _, detail := range s.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			seconds := (retry.GetRetryDelay().AsDuration() + time.Second - 1) / time.Second
			reply.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
		}
	}
	return answer
}
