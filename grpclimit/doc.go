// Package grpclimit puts rate limits on gRPC.
//
// A server denies calls, or messages, over the limit with RESOURCE_EXHAUSTED, and
// details that say what was exceeded and when to retry:
//
//	grpc.NewServer(
//		grpc.UnaryInterceptor(grpclimit.UnaryServer(lim, nil)),
//		grpc.StreamInterceptor(grpclimit.StreamServer(lim, nil)),
//	)
//
// A client waits until its limits allow a call:
//
//	grpc.NewClient(target, grpc.WithUnaryInterceptor(grpclimit.UnaryClient(lim, nil)))
//
// [UnaryAdmit] and [StreamAdmit] protect a server from more calls than it can serve,
// [UnaryBreak] and [StreamBreak] a client from services that fail. See package
// overload.
package grpclimit
