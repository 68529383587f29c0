package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

func ExampleOpen() {
	ctx := context.Background()
	url := "redis://" + liveServer.Addr // such as redis://user:password@localhost:6379/0
	store, err := redisstore.Open(ctx, url, &redisstore.Options{Prefix: "shop", Timeout: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	for _, warning := range store.Warnings() {
		fmt.Println(warning)
	}

	lim, err := penstock.New(store, penstock.PerMinute(30).WithBurst(15))
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := lim.Allow(ctx, "user:42")
	fmt.Println(d.Allowed, d.Limit, err)
	// Output: true 15 <nil>
}

// A Cluster or a Sentinel master differs only in its URL.
func ExampleOpen_cluster() {
	store, err := redisstore.Open(context.Background(), "redis-cluster://10.0.0.1:6379,10.0.0.2:6379?tls=true", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
}

// With an ID a request can be repeated after an error of unknown outcome.
func ExampleStore_Take() {
	ctx := context.Background()
	store, err := redisstore.Open(ctx, "redis://"+liveServer.Addr, &redisstore.Options{Prefix: "mail", Timeout: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	r := penstock.Request{Key: "user:42", Limit: penstock.PerHour(100), Cost: 10, ID: "newsletter-7"}
	first, err := store.Take(ctx, r)
	if err != nil {
		fmt.Println(err)
		return
	}
	second, err := store.Take(ctx, r)
	fmt.Println(first.Granted, second.Granted, first.Remaining == second.Remaining, err)
	// Output: 10 10 true <nil>
}

func ExampleStore_TakeEach() {
	ctx := context.Background()
	store, err := redisstore.Open(ctx, "redis://"+liveServer.Addr, &redisstore.Options{Prefix: "each", Timeout: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	requests := []penstock.Request{
		{Key: "user:1", Limit: penstock.PerSecond(5), Cost: 1},
		{Key: "user:2", Limit: penstock.PerSecond(5), Cost: 6},
	}
	decisions := make([]penstock.Decision, len(requests))
	err = penstock.TakeEach(ctx, store, requests, decisions) // one round trip
	fmt.Println(decisions[0].Allowed, decisions[1].Allowed, err)
	// Output: true false <nil>
}

// Check tries a server before a program relies on it.
func ExampleCheck() {
	url := "redis://" + liveServer.Addr // such as redis://user:password@localhost:6379/0
	findings, err := redisstore.Check(context.Background(), url, &redisstore.Options{Prefix: "shop", Timeout: 10 * time.Second})
	for _, f := range findings {
		if f.What == "takes" || f.State != redisstore.Works {
			fmt.Println(f.What, f.State, f.Detail)
		}
	}
	fmt.Println(err)
	// Output:
	// takes works exact, by every algorithm
	// <nil>
}
