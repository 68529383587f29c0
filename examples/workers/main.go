// Workers is a pool of workers that call another service, which allows five calls at once
// and five a second, and denies the rest. The workers share one limiter on the client side, so no
// call is denied, and none waits longer than needed.
//
//	go run ./examples/workers
//	go run ./examples/workers -pace 50/1s    # faster than the service allows: the workers obey its Retry-After
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
	pace := flag.String("pace", "5/1s burst=1", "limit of the workers")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, "5/1s", *pace, 20); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run starts a service with one limit, and workers with another one that make the given
// number of calls in total.
func run(ctx context.Context, w io.Writer, serviceLimit, workerLimit string, calls int64) error {
	service, err := limiter(serviceLimit)
	if err != nil {
		return err
	}
	workers, err := limiter(workerLimit)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // which stops the service
	go func() { _ = http.Serve(listener, httplimit.Protect(service, nil)(http.HandlerFunc(hello))) }()
	client := &http.Client{Transport: httplimit.Pace(workers, nil)}
	start := time.Now()
	denied, err := work(ctx, client, "http://"+listener.Addr().String(), calls)
	fmt.Fprintf(w, "%d calls, %d denied, in %v\n", calls, denied, time.Since(start).Round(100*time.Millisecond))
	return err
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

func limiter(text string) (*penstock.Limiter, error) {
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		return nil, err
	}
	return penstock.New(penstock.NewMemory(nil), limit)
}

// work makes the calls, eight at a time, and returns how many were denied.
func work(ctx context.Context, client *http.Client, url string, calls int64) (denied int64, err error) {
	var todo, denials atomic.Int64
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
					denials.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return denials.Load(), err
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
