// Package grpclimit puts rate limits on gRPC.
//
// A server refuses calls, or messages, that are too many, with the status
// RESOURCE_EXHAUSTED and in it what was exceeded and when to come back:
//
//	grpc.NewServer(
//		grpc.UnaryInterceptor(grpclimit.UnaryServer(lim, nil)),
//		grpc.StreamInterceptor(grpclimit.StreamServer(lim, nil)),
//	)
//
// A client waits for its turn:
//
//	grpc.NewClient(target, grpc.WithUnaryInterceptor(grpclimit.UnaryClient(lim, nil)))
package grpclimit
