package redisstore

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// A crowd is many callers at once, each of whom buys one of a stock.
type crowd struct {
	callers  int
	perKey   time.Duration // that Redis needs
	nodes    int           // of Redis; a Cluster has several
	conns    int           // to each node
	blind    bool          // whether the client tells no nodes apart
	fallback bool
	buy      string        // by which operation; see buyers
	within   time.Duration // the deadline of each caller; none if it is 0
	early    bool          // Options.EndEarly
	maxCalls int           // Options.MaxCalls
	timeout  time.Duration // of the fallback; by default that of the store

	during func(*virtualRedis) // what happens while they buy
}

func (c crowd) String() string {
	return fmt.Sprintf("%d callers %v/key %d nodes %d conns fallback=%t %s", c.callers, c.perKey, c.nodes, c.conns, c.fallback, c.buy)
}

const (
	stock     = 100
	stockKeys = 3 // stocks of a Cluster, one on each node
)

// What the callers of a crowd got.
type purchases struct {
	sold    int64
	local   int           // decided by the fallback
	busy    int           // ErrBusy
	left    int           // errors of their own contexts, while Redis did not answer
	down    int           // ErrUnavailable
	other   []error       // any other
	slowest time.Duration // of their calls
}

// stockNames are the keys of the stocks. Each is on another node of a Cluster of three.
var stockNames = func() (names [stockKeys]string) {
	for i := range names {
		for n := 0; names[i] == ""; n++ {
			if name := fmt.Sprint("item-", n); int(slotOf("{"+name+"}"))*stockKeys/slots == i {
				names[i] = name
			}
		}
	}
	return names
}()

var stockLimit = penstock.Limit{Algorithm: penstock.FixedWindow, Period: 24 * time.Hour, Count: stock}

// buyers are the operations by which callers buy.
var buyers = map[string]func(ctx context.Context, store penstock.Store, key string, caller int) (penstock.Decision, error){
	"take": func(ctx context.Context, store penstock.Store, key string, _ int) (penstock.Decision, error) {
		return store.Take(ctx, penstock.Request{Key: key, Limit: stockLimit, Cost: 1})
	},
	"take once": func(ctx context.Context, store penstock.Store, key string, caller int) (penstock.Decision, error) {
		return store.Take(ctx, penstock.Request{Key: key, Limit: stockLimit, Cost: 1, ID: fmt.Sprint(caller)})
	},
	"take all": func(ctx context.Context, store penstock.Store, key string, caller int) (penstock.Decision, error) {
		ds := make([]penstock.Decision, 2)
		rs := []penstock.Request{{Key: key, Limit: stockLimit, Cost: 1}, {Key: fmt.Sprint("caller-", caller), Limit: stockLimit, Cost: 1}}
		err := penstock.TakeAll(ctx, store, rs, ds)
		return penstock.Tightest(ds), err
	},
	"peek": func(ctx context.Context, store penstock.Store, key string, _ int) (penstock.Decision, error) {
		return store.Take(ctx, penstock.Request{Key: key, Limit: stockLimit})
	},
	"refund": func(ctx context.Context, store penstock.Store, key string, caller int) (penstock.Decision, error) {
		return store.Take(ctx, penstock.Request{Key: key, Limit: stockLimit, Cost: -1, ID: fmt.Sprint(caller)})
	},
}

// run lets the crowd buy, in virtual time. The race detector breaks now and then if thousands of goroutines run at once, and
// finds what it can find in hundreds.
func (c crowd) run(t *testing.T) (ps [stockKeys]purchases, opened bool) {
	t.Helper()
	emptyPools() // what has a channel or a timer is of one bubble
	defer emptyPools()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		redis := newVirtualRedis(ctx, c.perKey, c.nodes, c.conns)
		redis.blind = c.blind
		own, err := New(redis, &Options{EndEarly: c.early, MaxCalls: c.maxCalls})
		if err != nil {
			t.Fatal(err)
		}
		store := penstock.Store(own)
		fallback := penstock.WithFallback(own, nil, &penstock.FallbackOptions{Timeout: c.timeout})
		if c.fallback {
			store = fallback
		}
		time.Sleep(time.Minute)
		if c.during != nil {
			go c.during(redis)
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range c.callers {
			wg.Go(func() {
				took, d, err := c.buyOne(store, i)
				mu.Lock()
				defer mu.Unlock()
				ps[i%c.stocks()].count(took, d, err)
			})
		}
		wg.Wait()
		down, _ := fallback.Down()
		opened = down > 0
		time.Sleep(time.Minute) // what is still in flight ends
	})
	return ps, opened
}

// emptyPools empties every sync.Pool: what is in one survives one collection.
func emptyPools() {
	runtime.GC()
	runtime.GC()
}

func (c crowd) stocks() int { return min(c.nodes, stockKeys) }

func (c crowd) buyOne(store penstock.Store, caller int) (took time.Duration, d penstock.Decision, err error) {
	ctx := context.Background()
	if c.within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.within)
		defer cancel()
	}
	began := time.Now()
	d, err = buyers[c.buy](ctx, store, stockNames[caller%c.stocks()], caller)
	return time.Since(began), d, err
}

func (p *purchases) count(took time.Duration, d penstock.Decision, err error) {
	p.slowest = max(p.slowest, took)
	if d.Source == penstock.SourceFallback {
		p.local++
	}
	switch {
	case err == nil:
		p.sold += d.Granted
	case errors.Is(err, penstock.ErrUnavailable):
		p.down++
	case errors.Is(err, penstock.ErrBusy):
		p.busy++
	case errors.Is(err, context.DeadlineExceeded):
		p.left++
	default:
		p.other = append(p.other, err)
	}
}

// check reports what a crowd got wrong while Redis answers: no outage, no unit of the fallback, no unit too many.
func (c crowd) check(t *testing.T) {
	t.Helper()
	ps, opened := c.run(t)
	for i, p := range ps[:c.stocks()] {
		if opened || p.local+p.down+p.left+len(p.other) > 0 || p.sold > stock || p.slowest > c.longest() {
			t.Errorf("%v: stock %d: breaker open %t, %+v; want decisions of Redis or ErrBusy, within %v", c, i, opened, p, c.longest())
		}
		want := min(stock, (c.callers+c.stocks()-1-i)/c.stocks()) // of each in turn
		if c.within == 0 && c.timeout == 0 && c.takes() && p.busy == 0 && p.sold != int64(want) {
			t.Errorf("%v: stock %d: sold %d, want %d", c, i, p.sold, want)
		}
		if c.callers <= 10_000 && c.perKey <= 50*time.Microsecond && c.within == 0 && c.timeout == 0 && p.busy > 0 {
			t.Errorf("%v: stock %d: %d callers were told that Redis is busy", c, i, p.busy)
		}
	}
}

// longest returns how long a call may take. What a TakeAll over slots has reserved is refunded after its time.
func (c crowd) longest() time.Duration {
	if c.buy == "take all" && c.nodes > 1 {
		return (maxTimeouts + 1) * defaultTimeout
	}
	return maxTimeouts * defaultTimeout
}

func (c crowd) takes() bool { return c.buy != "peek" && c.buy != "refund" }

// crowds returns all of them, in no order.
func crowds() (list []crowd) {
	for _, callers := range []int{1_000, 5_000, 10_000, 50_000} {
		for _, micros := range []time.Duration{5, 10, 20, 30, 50, 100} {
			for _, nodes := range []int{1, stockKeys} {
				for _, conns := range []int{1, 4} {
					for _, fallback := range []bool{true, false} {
						list = append(list, crowd{
							callers: fixedseed.FewerUnderRace(callers), perKey: micros * time.Microsecond, nodes: nodes, conns: conns, fallback: fallback, buy: "take",
						})
					}
				}
			}
		}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// budget returns how many callers there are in all the crowds of a test: all with -rapid.checks=1000, as in make properties.
func budget() int {
	checks, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	if err != nil || checks >= 1000 {
		return math.MaxInt
	}
	return 1000 * checks
}

// While Redis answers, a limit is exact, whatever the number of callers: no crowd looks like an outage.
func TestCrowdOfCallersIsNoOutage(t *testing.T) {
	left := budget()
	for _, c := range append([]crowd{
		{callers: fixedseed.FewerUnderRace(10_000), perKey: 50 * time.Microsecond, nodes: 1, conns: 1, fallback: true, buy: "take"},
		{callers: fixedseed.FewerUnderRace(10_000), perKey: 100 * time.Microsecond, nodes: 1, conns: 4, fallback: true, buy: "take"},
		{callers: 150, perKey: 3 * time.Millisecond, nodes: 1, conns: 1, fallback: true, buy: "refund", maxCalls: 1},
		{callers: fixedseed.FewerUnderRace(5_000), perKey: 100 * time.Microsecond, nodes: stockKeys, conns: 4, fallback: true, buy: "take"},
		{callers: fixedseed.FewerUnderRace(5_000), perKey: 100 * time.Microsecond, nodes: stockKeys, conns: 4, buy: "take once"},
		{callers: fixedseed.FewerUnderRace(5_000), perKey: 100 * time.Microsecond, nodes: stockKeys, conns: 4, buy: "take all", fallback: true},
		{callers: fixedseed.FewerUnderRace(2_000), perKey: 100 * time.Microsecond, nodes: 1, conns: 4, fallback: true, buy: "refund"},
	}, crowds()...) {
		if c.callers <= left {
			left -= c.callers
			c.check(t)
		}
	}
}

// So it is for every operation, and where a Cluster's client tells no nodes apart.
func TestCrowdOfEveryOperationIsDecidedByRedis(t *testing.T) {
	for buy := range buyers {
		for _, nodes := range []int{1, stockKeys} {
			c := crowd{callers: fixedseed.FewerUnderRace(2_000), perKey: 50 * time.Microsecond, nodes: nodes, conns: 2, fallback: true, buy: buy}
			c.check(t)
			if c.blind = nodes > 1; c.blind {
				c.check(t)
			}
		}
	}
}

// Callers whose own time is short get their own error, or are told that Redis is busy: the fallback, which might have
// time left, must not sell. So it is if its own timeout is shorter than that of the store.
func TestCrowdWithDeadlinesIsNotDecidedByFallback(t *testing.T) {
	for _, c := range []crowd{
		{within: 100 * time.Millisecond},
		{within: 100 * time.Millisecond, early: true},
		{within: 100 * time.Millisecond, early: true, nodes: stockKeys},
		{within: 20 * time.Millisecond, early: true},
		{within: 40 * time.Millisecond, early: true, nodes: stockKeys},
		{timeout: 20 * time.Millisecond},
		{timeout: 20 * time.Millisecond, nodes: stockKeys},
	} {
		c.callers, c.nodes, c.fallback, c.buy = fixedseed.FewerUnderRace(3_000), max(c.nodes, 1), true, "take"
		for _, c.perKey = range []time.Duration{50 * time.Microsecond, 80 * time.Microsecond, 100 * time.Microsecond} {
			for _, c.conns = range []int{1, 4} {
				c.check(t)
			}
		}
	}
}

// If Redis hangs while a crowd waits, all calls end within three timeouts of its last answer: those that were sent within one, those
// that wait for their slots within another, and some of them have one more when they are sent. The fallback decides them.
func TestCrowdNoticesRedisThatHangs(t *testing.T) {
	const perKey = 50 * time.Microsecond
	callers := fixedseed.FewerUnderRace(5_000)
	hangsAfter := time.Duration(callers) * perKey / 4
	for _, nodes := range []int{1, stockKeys} {
		for _, fallback := range []bool{true, false} {
			c := crowd{callers: callers, perKey: perKey, nodes: nodes, conns: 4, fallback: fallback, buy: "take"}
			c.during = func(redis *virtualRedis) {
				time.Sleep(hangsAfter)
				for _, n := range redis.nodes {
					n.fail(true)
				}
			}
			ps, opened := c.run(t)
			for i, p := range ps[:c.stocks()] {
				if opened != fallback || (p.local > 0) != fallback || (p.down > 0) == fallback || p.busy+p.left+len(p.other) > 0 {
					t.Errorf("%v: stock %d: breaker open %t, %+v; want an outage", c, i, opened, p)
				}
				if most := hangsAfter + 3*defaultTimeout; p.slowest > most {
					t.Errorf("%v: stock %d: a call took %v, want at most %v", c, i, p.slowest, most)
				}
			}
		}
	}
}

// A connection that is lost while others are served is noticed, and so is a node of a Cluster that hangs. Callers of other nodes
// notice nothing.
func TestCrowdNoticesPartThatHangs(t *testing.T) {
	for _, nodes := range []int{1, stockKeys} {
		for _, fallback := range []bool{true, false} {
			for _, blind := range []bool{false, true} {
				c := crowd{callers: fixedseed.FewerUnderRace(5_000), perKey: 10 * time.Microsecond, nodes: nodes, conns: 4, fallback: fallback, blind: blind, buy: "take"}
				c.during = func(redis *virtualRedis) { redis.nodes[0].fail(nodes > 1, 2) }
				ps, _ := c.run(t)
				for i, p := range ps[:c.stocks()] {
					if failed := p.down + p.local; (failed > 0) != (i == 0) || p.busy+p.left+len(p.other) > 0 {
						t.Errorf("%v: stock %d: %+v; want failures only of the first", c, i, p)
					}
					if most := 10 * defaultTimeout; p.slowest > most {
						t.Errorf("%v: stock %d: a call took %v, want at most %v", c, i, p.slowest, most)
					}
				}
			}
		}
	}
}
