package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/client"
)

// Each request takes an estimate under three budgets, and settles it. Budgets that must be
// exact are not decided by a fallback. Their windows are longer than the test, so that time
// pays nothing back.
const budgetRules = `
domain: llm
descriptors:
  - {key: tokens, limit: "1000000000/6h fixed-window", settle: true, on_store_failure: deny}
  - {key: day, limit: "1000000000/1d fixed-window", settle: true, on_store_failure: deny}
  - {key: money, limit: "1000000000/30d fixed-window", settle: true, hold: 24h, on_store_failure: deny}
`

var budgets = []string{"tokens", "day", "money"}

const (
	estimate   = 100
	tenants    = 16
	budgetLoad = 8 // callers at once
)

// amount is what a request has really used of a budget.
func amount(request, budget int) int64 { return int64((request*7 + budget*31) % 230) }

// A budgetTest makes requests to daemons that share a Redis.
type budgetTest struct {
	*testing.T
	redis   *redistest.Server
	daemons []*daemon
	clients []*client.Client

	missed     atomic.Int64 // settlements that no store decided, so that they are repeated
	unanswered atomic.Int64 // of these, those that got no response
	settled    atomic.Int64
}

// Daemons are killed and Redis is frozen between the reservation and the settlement of
// requests under three limits each. Callers repeat what the store did not decide. Afterwards
// every ID has been charged exactly what was settled under it, and each key the sum of its
// IDs.
func TestSettlementsSurviveFaults(t *testing.T) {
	t.Parallel()
	rounds, size := 3, 40
	if *full {
		rounds, size = 20, 500
	}
	b := newBudgetTest(t)
	faults := []func(settle func() *sync.WaitGroup){b.freezeRedis, b.killDaemon, b.killDaemonWhileRedisIsFrozen}
	for round := range rounds {
		first := round * size
		b.each(first, size, b.take).Wait()
		missed := b.missed.Load()
		faults[round%len(faults)](func() *sync.WaitGroup { return b.each(first, size, b.settle) })
		t.Logf("round %d: %d settlements were repeated", round, b.missed.Load()-missed)
	}
	b.checkIDs(rounds * size)
	b.checkKeys(rounds * size)
}

func newBudgetTest(t *testing.T) *budgetTest {
	b := &budgetTest{T: t, redis: redistest.StartForTest(t, redistest.Options{})}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(t, path, budgetRules)
	for range 2 {
		d := serve(t, &daemon{flags: []string{"--rules", path, "--store", "redis://" + b.redis.Addr}})
		c, err := client.New("http://"+d.addrs["http"], &client.Options{HTTP: &http.Client{
			Timeout: longTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: budgetLoad},
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		b.daemons, b.clients = append(b.daemons, d), append(b.clients, c)
	}
	return b
}

// each calls a function for so many requests, some at once.
func (b *budgetTest) each(first, n int, do func(request int)) *sync.WaitGroup {
	var next atomic.Int64
	var done sync.WaitGroup
	for range budgetLoad {
		done.Go(func() {
			for i := int(next.Add(1)); i <= n && !b.Failed(); i = int(next.Add(1)) {
				do(first + i - 1)
			}
		})
	}
	return &done
}

// requestOf returns a request under the three budgets of its tenant.
func requestOf(request int, cost func(budget int) int64) client.TakeRequest {
	t := client.TakeRequest{Domain: "llm", ID: fmt.Sprintf("id-%d", request)}
	for i, budget := range budgets {
		c := cost(i)
		t.Descriptors = append(t.Descriptors, client.Descriptor{
			Entries: []client.Entry{{Key: budget, Value: strconv.Itoa(request % tenants)}}, Cost: &c,
		})
	}
	return t
}

// take takes the estimate of a request.
func (b *budgetTest) take(request int) {
	b.repeat(request, b.sameDaemon, requestOf(request, func(int) int64 { return estimate }), func(error) {})
}

// settle settles a request to what it has used.
func (b *budgetTest) settle(request int) {
	t := requestOf(request, func(budget int) int64 { return amount(request, budget) })
	b.repeat(request, b.nextDaemon, t, func(err error) {
		b.missed.Add(1)
		if err != nil {
			b.unanswered.Add(1)
		}
	})
	b.settled.Add(1)
}

type sendFunc func(request, attempt int, t client.TakeRequest) (client.TakeResponse, error)

// sameDaemon sends a take, and its repetitions to the same daemon. After a reconnect, one that does not know yet that a
// single server has all keys refunds what a lost call may have taken, and would refund what another daemon was granted
// under the ID.
func (b *budgetTest) sameDaemon(request, _ int, t client.TakeRequest) (client.TakeResponse, error) {
	return b.clients[request%len(b.clients)].Do(context.Background(), t)
}

// nextDaemon sends a settlement to one daemon after the other: the answer of a fallback is forgotten if its daemon dies.
func (b *budgetTest) nextDaemon(request, attempt int, t client.TakeRequest) (client.TakeResponse, error) {
	return b.clients[(request+attempt)%len(b.clients)].Settle(context.Background(), t)
}

// repeat sends a request until the store has decided it.
func (b *budgetTest) repeat(request int, send sendFunc, t client.TakeRequest, missed func(error)) client.TakeResponse {
	for attempt, end := 0, time.Now().Add(2*time.Minute); ; attempt++ {
		a, err := send(request, attempt, t)
		switch {
		case errors.Is(err, penstock.ErrUnknownID):
			b.Errorf("request %d: %v", request, err)
			return a
		case err == nil && a.Allowed && a.Source == penstock.SourceStore:
			return a
		case time.Now().After(end):
			b.Errorf("request %d: %v, %v after %d attempts", request, a.Decision, err, attempt)
			return a
		}
		missed(err)
		time.Sleep(5 * time.Millisecond) // rather than use up the machine
	}
}

// freezeRedis freezes Redis before anything is settled, and wakes it once fallbacks have
// answered settlements.
func (b *budgetTest) freezeRedis(settle func() *sync.WaitGroup) {
	b.signalRedis(b.redis.Pause)
	settling := settle()
	b.awaitFallbacks()
	b.signalRedis(b.redis.Resume)
	settling.Wait()
}

// killDaemon kills a daemon before anything is settled, and starts it again once callers
// have noticed.
func (b *budgetTest) killDaemon(settle func() *sync.WaitGroup) {
	b.kill(b.daemons[0])
	before := b.unanswered.Load()
	settling := settle()
	redistest.WaitFor(b, "callers miss the daemon", func() bool { return b.unanswered.Load() > before })
	b.daemons[0].start()
	settling.Wait()
}

// killDaemonWhileRedisIsFrozen loses the settlements that a daemon has answered and not yet
// delivered.
func (b *budgetTest) killDaemonWhileRedisIsFrozen(settle func() *sync.WaitGroup) {
	b.signalRedis(b.redis.Pause)
	settling := settle()
	b.awaitFallbacks()
	b.kill(b.daemons[1])
	b.signalRedis(b.redis.Resume)
	b.daemons[1].start()
	settling.Wait()
}

// awaitFallbacks waits until fallbacks have answered settlements.
func (b *budgetTest) awaitFallbacks() {
	b.Helper()
	answered := func() int64 { return b.missed.Load() - b.unanswered.Load() }
	before := answered()
	redistest.WaitFor(b, "fallbacks answer settlements", func() bool { return answered() > before+budgetLoad })
}

// kill kills a daemon, and fails unless a signal has ended it.
func (b *budgetTest) kill(d *daemon) {
	b.Helper()
	if d.kill(); d.killedBySignal() == 0 {
		b.Errorf("the daemon was not killed: %v", d.command.ProcessState)
	}
}

func (b *budgetTest) signalRedis(signal func() error) {
	b.Helper()
	if err := signal(); err != nil {
		b.Fatal(err)
	}
}

// checkIDs repeats the takes: each is answered by what is charged under its ID, and charges
// nothing.
func (b *budgetTest) checkIDs(requests int) {
	if n := int(b.settled.Load()); n != requests {
		b.Errorf("%d requests were settled, want %d", n, requests)
	}
	b.each(0, requests, func(request int) {
		t := requestOf(request, func(int) int64 { return estimate })
		a := b.repeat(request, b.sameDaemon, t, func(error) {})
		for i := range a.Descriptors {
			if got, want := a.Descriptors[i].Granted, amount(request, i); got != want {
				b.Errorf("request %d: %d units of %s are charged, want %d", request, got, budgets[i], want)
			}
		}
	}).Wait()
}

// checkKeys compares what each key has used with the sum over its requests.
func (b *budgetTest) checkKeys(requests int) {
	for tenant := range tenants {
		var want [3]int64
		for request := tenant; request < requests; request += tenants {
			for i := range want {
				want[i] += amount(request, i)
			}
		}
		peek := requestOf(tenant, func(int) int64 { return 0 })
		peek.ID = ""
		a := b.repeat(tenant, b.sameDaemon, peek, func(error) {})
		for i, d := range a.Descriptors {
			if used := d.Limit - d.Remaining; used != want[i] {
				b.Errorf("tenant %d has used %d of %s, want %d", tenant, used, budgets[i], want[i])
			}
		}
	}
}
