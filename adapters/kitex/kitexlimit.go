// Package kitexlimit limits services that are built with kitex.
//
//	hello.NewServer(handler, server.WithMiddleware(kitexlimit.Adapt(grpclimit.UnaryServer(lim, nil))))
package kitexlimit

import (
	"context"
	"strings"

	"github.com/bytedance/gopkg/cloud/metainfo"
	"github.com/cloudwego/kitex/pkg/endpoint"
	"github.com/cloudwego/kitex/pkg/kerrors"
	kcodes "github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/codes"
	kmetadata "github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/metadata"
	kstatus "github.com/cloudwego/kitex/pkg/remote/trans/nphttp2/status"
	"github.com/cloudwego/kitex/pkg/rpcinfo"
	_ "google.golang.org/genproto/protobuf/field_mask" // requires a genproto of after it was split, unlike the one that kitex requires
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Adapt converts an interceptor of a gRPC server, such as that of package grpclimit, to kitex's middleware of a server,
// of Thrift and gRPC. The method of a call is /service/method, and its metadata are the values of package
// metainfo, with names in lower case, and of gRPC. A streaming call is charged once, when it begins.
//
// A denial is a [kerrors.ErrOverlimit], which is RESOURCE_EXHAUSTED over gRPC.
func Adapt(intercept grpc.UnaryServerInterceptor) endpoint.Middleware {
	return func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, req, resp any) error {
			served := false
			handler := func(ctx context.Context, req any) (any, error) {
				served = true
				return nil, next(ctx, req, resp)
			}
			within, method := incoming(ctx)
			_, err := intercept(within, req, &grpc.UnaryServerInfo{FullMethod: method}, handler)
			if err == nil || served {
				return err
			}
			return refusal(err)
		}
	}
}

// incoming returns the context that a gRPC server would have given the call, and its method.
func incoming(ctx context.Context) (within context.Context, method string) {
	md := metadata.MD{}
	for name, value := range metainfo.GetAllValues(ctx) {
		md.Append(strings.ToLower(name), value)
	}
	for name, value := range metainfo.GetAllPersistentValues(ctx) {
		md.Append(strings.ToLower(name), value)
	}
	overGRPC, _ := kmetadata.FromIncomingContext(ctx)
	ctx = metadata.NewIncomingContext(ctx, metadata.Join(md, metadata.MD(overGRPC)))
	info := rpcinfo.GetRPCInfo(ctx)
	if info == nil {
		return ctx, ""
	}
	if from := info.From(); from != nil && from.Address() != nil {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: from.Address()})
	}
	return ctx, "/" + info.Invocation().ServiceName() + "/" + info.Invocation().MethodName()
}

// refusal returns the error of a call that was not served.
func refusal(err error) error {
	if status.Code(err) == codes.ResourceExhausted {
		return kerrors.ErrOverlimit.WithCause(err)
	}
	s := status.Convert(err)
	return kstatus.Err(kcodes.Code(s.Code()), s.Message())
}
