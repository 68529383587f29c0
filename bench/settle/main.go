// Command settle measures what IDs and settlements cost, on memory and on Redis: a take under
// an ID beside one without, and a settlement beside a take under an ID.
//
//	go run ./settle           # half a minute
//	go run ./settle -quick    # a few seconds, to see that it runs
//
// The ratios are medians over rounds in which the three take turns, so that other load on the
// machine affects all of them alike. On Redis one caller waits for each answer, and 64 do at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

func main() {
	quick := flag.Bool("quick", false, "measure a few rounds")
	flag.Parse()
	rounds := 100
	if *quick {
		rounds = 3
	}
	if err := run(rounds, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "settle:", err)
		os.Exit(1)
	}
}

// The most that one call may cost of another, as docs/benchmarks.md states it.
const (
	mostForID     = 1.6 // a take under an ID, of a take without
	mostForSettle = 1.3 // a settlement, of a take under an ID
)

func run(rounds int, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "store\tcallers\ttake, ns\tunder an ID\tof that, at most\tsettle\tof an ID, at most\t")
	clock := time.Now()
	memory := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return clock }})
	forget := func(int) string {
		clock = clock.Add(2 * limit.Period)
		return "call"
	}
	if err := report(table, "memory", memory, 1, forget, rounds, 2*keys); err != nil {
		return err
	}
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		return err
	}
	defer server.Stop()
	store, err := redisstore.Open(context.Background(), "unix://"+server.Socket, &redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	for _, callers := range []int{1, 64} {
		newIDs := func(round int) string { return fmt.Sprintf("%d-%d", callers, round) }
		if err := report(table, "Redis", store, callers, newIDs, rounds, max(keys/4, 64*callers)); err != nil {
			return err
		}
	}
	return table.Flush()
}

// limit is never used up. In memory the IDs of a round are forgotten before the next, so that
// there are always as many: those of the requests in flight.
var limit = penstock.Limit{Count: 1_000_000_000, Period: time.Hour}

// report measures a store and prints its row. How the IDs of a round begin says prefix.
func report(w io.Writer, name string, store penstock.Store, callers int, prefix func(round int) string, rounds, calls int) error {
	var takes, withID, settles []float64
	for round := range rounds + 1 {
		took, err := measure(store, callers, prefix(round), calls)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if round == 0 {
			continue // fills caches
		}
		takes = append(takes, took[0].Seconds()*1e9/float64(calls))
		withID = append(withID, took[1].Seconds()/took[0].Seconds())
		settles = append(settles, took[2].Seconds()/took[1].Seconds())
	}
	_, err := fmt.Fprintf(w, "%s\t%d\t%.0f\t%.2f\t%.1f\t%.2f\t%.1f\t\n", name, callers, median(takes), median(withID), mostForID, median(settles), mostForSettle)
	return err
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// keys is how many keys the calls are about.
const keys = 1000

// measure times a round: takes, takes under new IDs, and the settlements of these, to more
// and to less by turns.
func measure(store penstock.Store, callers int, prefix string, calls int) (took [3]time.Duration, err error) {
	lim, err := penstock.New(store, limit)
	if err != nil {
		return took, err
	}
	plain, withID, settles := make([]penstock.Request, calls), make([]penstock.Request, calls), make([]penstock.Request, calls)
	for i := range calls {
		plain[i] = lim.Request("key-" + strconv.Itoa(i%keys))
		plain[i].Cost = 2
		withID[i] = plain[i]
		withID[i].ID = prefix + "-" + strconv.Itoa(i)
		settles[i] = withID[i]
		settles[i].Cost, settles[i].Settle = int64(1+i%2*2), true
	}
	for i, requests := range [][]penstock.Request{plain, withID, settles} {
		start := time.Now()
		if err := takeAtOnce(store, callers, requests); err != nil {
			return took, err
		}
		took[i] = time.Since(start)
	}
	return took, nil
}

// takeAtOnce decides requests by several callers, each of which has its part of them.
func takeAtOnce(store penstock.Store, callers int, requests []penstock.Request) error {
	if callers == 1 {
		return takeEvery(store, requests)
	}
	errs, part := make(chan error, callers), len(requests)/callers
	for i := range callers {
		go func() { errs <- takeEvery(store, requests[i*part:(i+1)*part]) }()
	}
	var err error
	for range callers {
		err = errors.Join(err, <-errs)
	}
	return err
}

// takeEvery decides requests one after the other, all of which must be granted in full.
func takeEvery(store penstock.Store, requests []penstock.Request) error {
	ctx := context.Background()
	for i := range requests {
		d, err := store.Take(ctx, requests[i])
		if err != nil {
			return err
		}
		if d.Granted != requests[i].Cost {
			return errors.New("not granted in full: " + d.String())
		}
	}
	return nil
}
