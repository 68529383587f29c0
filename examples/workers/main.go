// Workers is a pool of workers that call somebody else's API, which takes five
// calls a second and refuses the rest. They share one limit, so none is refused,
// and nobody sleeps longer than needed.
//
//	go run ./examples/workers
//	go run ./examples/workers -pace 50/1s    # faster than the API likes: it says so, and they wait
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	pace := flag.String("pace", "5/1s burst=1", "the limit that the workers keep to")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, "5/1s", *pace, 20); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run starts an API under one limit, and workers under another that make so many
// calls between them.
func run(ctx context.Context, w io.Writer, theirs, ours string, calls int64) error {
	api, err := limiter(theirs)
	if err != nil {
		return err
	}
	lim, err := limiter(ours)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // which ends the API
	go func() { _ = http.Serve(listener, httplimit.Protect(api, nil)(http.HandlerFunc(answer))) }()
	client := &http.Client{Transport: httplimit.Pace(lim, nil)}
	start := time.Now()
	refused, err := work(ctx, client, "http://"+listener.Addr().String(), calls)
	fmt.Fprintf(w, "%d calls, %d refused, in %v\n", calls, refused, time.Since(start).Round(100*time.Millisecond))
	return err
}

func answer(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "here you are") }

func limiter(text string) (*penstock.Limiter, error) {
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		return nil, err
	}
	return penstock.New(penstock.NewMemory(nil), limit)
}

// work makes the calls, eight at a time, and returns how many were refused.
func work(ctx context.Context, client *http.Client, url string, calls int64) (refused int64, err error) {
	var todo, no atomic.Int64
	var once sync.Once
	var wg sync.WaitGroup
	todo.Store(calls)
	for range 8 {
		wg.Go(func() {
			for todo.Add(-1) >= 0 {
				status, failure := call(ctx, client, url)
				if failure != nil {
					once.Do(func() { err = failure })
					return
				}
				if status == http.StatusTooManyRequests {
					no.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return no.Load(), err
}

func call(ctx context.Context, client *http.Client, url string) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
