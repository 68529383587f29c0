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
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// A bench is one run.
type bench struct{ *harness.Run }

// command measures, and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := bench{harness.New("settle", stdout, stderr)}
	b.Rounds = 100
	b.Settings = func() string { return fmt.Sprintf("%d rounds", b.Rounds) }
	b.Prepare = func() {
		if b.Quick {
			b.Rounds = 3
		}
	}
	return b.Main(args, []harness.Case{{Name: "memory", Run: b.memory}, {Name: "redis", Run: b.redis}})
}

// memory measures the memory store with a clock by which the IDs of a round are forgotten before
// the next, so that there are always as many: those of the requests in flight.
func (b bench) memory() {
	clock := time.Now()
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return clock }})
	b.measure("memory", store, 1, 2*keys, func() string {
		clock = clock.Add(2 * limit.Period)
		return "call"
	})
}

func (b bench) redis() {
	server := redistest.StartForTest(b, redistest.Options{})
	store := harness.Must(redisstore.Open(context.Background(), "unix://"+server.Socket, &redisstore.Options{Timeout: 10 * time.Second}))
	defer store.Close()
	round := 0
	for _, callers := range []int{1, 64} {
		b.measure("Redis", store, callers, max(keys/4, 64*callers), func() string {
			round++
			return fmt.Sprintf("%d-%d", callers, round)
		})
	}
}

// limit is never used up.
var limit = penstock.Limit{Count: 1_000_000_000, Period: time.Hour}

// keys is how many keys the calls are about.
const keys = 1000

// A kind is a kind of calls: takes, takes under new IDs, or settlements of these.
type kind struct {
	name     string
	most     float64 // that one may cost, as docs/benchmarks.md states it
	than     string  // of what
	requests []penstock.Request
}

// measure compares the kinds of calls, in turns. Each round begins its IDs with a new prefix.
func (b bench) measure(store string, s penstock.Store, callers, calls int, prefix func() string) {
	kinds := []*kind{{name: "take"}, {"take under an ID", 1.6, "a take without", nil}, {"settlement", 1.3, "a take under an ID", nil}}
	var contenders []*harness.Contender
	for i, k := range kinds {
		contenders = append(contenders, &harness.Contender{Name: k.name, Measure: func(c *harness.Contender) {
			if i == 0 {
				prepare(s, kinds, calls, prefix())
			}
			took, err := harness.Concurrently(callers, func(n int) error {
				part := calls / callers
				return takeEvery(s, k.requests[n*part:(n+1)*part])
			})
			harness.Check(err)
			c.Add("ns", float64(took)/float64(calls))
		}})
	}
	harness.TakeTurns(1, contenders...) // fills caches
	for _, c := range contenders {
		c.Forget()
	}
	harness.TakeTurns(b.Rounds, contenders...)
	t := b.Table("Medians of the rounds", "store", "callers", "take, ns", "under an ID", "settle")
	withID, settled := contenders[1].To(contenders[0], "ns"), contenders[2].To(contenders[1], "ns")
	t.Row(store, callers, harness.Decimals(0)(contenders[0].Median("ns")), withID, settled)
	for i, ratio := range []harness.Spread{withID, settled} {
		k := kinds[i+1]
		b.Find(fmt.Sprintf("%s, %d callers: a %s", store, callers, k.name), fmt.Sprintf("≤ %s %s", harness.Times(k.most), k.than),
			ratio.Median <= k.most, "%s", ratio)
	}
}

// prepare makes the requests of a round. Settlements are to more and to less by turns.
func prepare(s penstock.Store, kinds []*kind, calls int, prefix string) {
	lim := harness.Must(penstock.New(s, limit))
	plain, withID, settles := make([]penstock.Request, calls), make([]penstock.Request, calls), make([]penstock.Request, calls)
	for i := range calls {
		plain[i] = lim.Request("key-" + strconv.Itoa(i%keys))
		plain[i].Cost = 2
		withID[i] = plain[i]
		withID[i].ID = prefix + "-" + strconv.Itoa(i)
		settles[i] = withID[i]
		settles[i].Cost, settles[i].Settle = int64(1+i%2*2), true
	}
	kinds[0].requests, kinds[1].requests, kinds[2].requests = plain, withID, settles
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
