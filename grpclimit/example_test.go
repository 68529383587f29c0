package grpclimit_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/grpclimit"
)

// A server refuses clients that call too often, and streams that send too much.
func ExampleUnaryServer() {
	store := penstock.NewMemory(nil)
	calls, err := penstock.New(store, penstock.PerSecond(100).WithName("calls"))
	if err != nil {
		fmt.Println(err)
		return
	}
	messages, err := penstock.New(store, penstock.PerSecond(1000).WithName("messages"))
	if err != nil {
		fmt.Println(err)
		return
	}
	byKey := &grpclimit.Options{Key: grpclimit.Metadata("x-api-key")}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(grpclimit.UnaryServer(calls, byKey)),
		grpc.ChainStreamInterceptor(grpclimit.StreamServer(calls, byKey), grpclimit.MessageServer(messages, byKey)),
	)
	defer server.Stop()
	fmt.Println("limited")
	// Output:
	// limited
}

// A client waits for its turn, each method by itself.
func ExampleUnaryClient() {
	lim, err := penstock.New(penstock.NewMemory(nil), penstock.PerSecond(10).WithBurst(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	conn, err := grpc.NewClient("localhost:9090",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(grpclimit.UnaryClient(lim, &grpclimit.ClientOptions{
			Key: func(_ context.Context, call grpclimit.Call) string { return call.Method },
		})),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(conn.Target(), conn.Close())
	// Output:
	// localhost:9090 <nil>
}
