// Flashsale sells a hundred things to a crowd: at most two to each buyer, and not
// one more than there are. Both limits are taken as one, so whoever comes too late
// has lost nothing, and what is left is always true.
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
	stock := flag.Int64("stock", 100, "how many things there are")
	buyers := flag.Int("buyers", 10_000, "how many want one")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *stock, *buyers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A sale is limits that are taken together.
type sale struct {
	store            penstock.Store
	perBuyer, things *penstock.Limiter
}

// day is how long the sale lasts. Nothing comes back before it ends.
const day = 24 * time.Hour

func newSale(store penstock.Store, stock int64) (s *sale, err error) {
	s = &sale{store: store}
	window := penstock.Limit{Algorithm: penstock.FixedWindow, Period: day}
	window.Name, window.Count = "buyer", 2
	if s.perBuyer, err = penstock.New(store, window); err != nil {
		return nil, err
	}
	window.Name, window.Count = "stock", stock
	s.things, err = penstock.New(store, window)
	return s, err
}

// buy returns whether the buyer got one.
func (s *sale) buy(ctx context.Context, buyer string) (bool, error) {
	decisions := make([]penstock.Decision, 2)
	requests := []penstock.Request{s.perBuyer.Request(buyer), s.things.Request("things")}
	if err := penstock.TakeAll(ctx, s.store, requests, decisions); err != nil {
		return false, err
	}
	return penstock.Tightest(decisions).Allowed, nil
}

// run lets each buyer try three times, all of them at once.
func run(ctx context.Context, w io.Writer, stock int64, buyers int) error {
	s, err := newSale(penstock.NewMemory(nil), stock)
	if err != nil {
		return err
	}
	var sold, greedy atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	const crowd = 64
	for first := range crowd {
		wg.Go(func() {
			for buyer := first; buyer < buyers; buyer += crowd {
				n := s.shop(ctx, fmt.Sprintf("buyer %d", buyer), &failed)
				sold.Add(n)
				if n > 2 {
					greedy.Add(1)
				}
			}
		})
	}
	wg.Wait()
	fmt.Fprintf(w, "%d of %d sold to %d buyers; %d got more than two\n", sold.Load(), stock, buyers, greedy.Load())
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// shop tries to buy three, and returns how many it got.
func (s *sale) shop(ctx context.Context, buyer string, failed *atomic.Pointer[error]) (n int64) {
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
