// Flashsale sells a hundred items to many concurrent buyers: at most two per buyer, and
// never more than there are. Both limits are taken together, all or nothing, so a
// purchase that finds the stock sold out does not use up the buyer's own limit.
//
//	go run ./examples/flashsale
//	go run ./examples/flashsale -stock 10 -buyers 1000000
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

func main() {
	stock := flag.Int64("stock", 100, "number of items")
	buyers := flag.Int("buyers", 10_000, "number of buyers")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *stock, *buyers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A sale has two limits that are taken together.
type sale struct {
	store           penstock.Store
	perBuyer, stock *penstock.Limiter
}

// saleDuration is the window of both limits. A fixed window refills nothing before it
// ends, so the stock stays sold.
const saleDuration = 24 * time.Hour

func newSale(store penstock.Store, stock int64) (s *sale, err error) {
	s = &sale{store: store}
	window := penstock.Limit{Algorithm: penstock.FixedWindow, Period: saleDuration}
	window.Name, window.Count = "buyer", 2
	if s.perBuyer, err = penstock.New(store, window); err != nil {
		return nil, err
	}
	window.Name, window.Count = "stock", stock
	s.stock, err = penstock.New(store, window)
	return s, err
}

// buy takes one item for a buyer, and returns false if the stock or the buyer's limit is
// used up.
func (s *sale) buy(ctx context.Context, buyer string) (bool, error) {
	decisions := make([]penstock.Decision, 2)
	requests := []penstock.Request{s.perBuyer.Request(buyer), s.stock.Request("items")}
	if err := penstock.TakeAll(ctx, s.store, requests, decisions); err != nil {
		return false, err
	}
	return penstock.Tightest(decisions).Allowed, nil
}

// run lets all buyers try to buy three items each, 64 buyers at a time.
func run(ctx context.Context, w io.Writer, stock int64, buyers int) error {
	s, err := newSale(penstock.NewMemory(nil), stock)
	if err != nil {
		return err
	}
	var sold, overLimit atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	const concurrency = 64
	for first := range concurrency {
		wg.Go(func() {
			for buyer := first; buyer < buyers; buyer += concurrency {
				n := s.buyThree(ctx, fmt.Sprintf("buyer %d", buyer), &failed)
				sold.Add(n)
				if n > 2 {
					overLimit.Add(1)
				}
			}
		})
	}
	wg.Wait()
	fmt.Fprintf(w, "%d of %d sold to %d buyers; %d got more than two\n", sold.Load(), stock, buyers, overLimit.Load())
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// buyThree tries to buy three items, and returns how many were sold.
func (s *sale) buyThree(ctx context.Context, buyer string, failed *atomic.Pointer[error]) (n int64) {
	for range 3 {
		ok, err := s.buy(ctx, buyer)
		if err != nil {
			failed.Store(&err)
		}
		if ok {
			n++
		}
	}
	return n
}
