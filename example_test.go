package penstock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
)

// Three requests per hour and key, which may come all at once. A denial is a
// decision, not an error.
func Example() {
	lim, err := penstock.New(penstock.NewMemory(nil), penstock.PerHour(3))
	if err != nil {
		log.Fatal(err) // the limit is invalid
	}
	for range 4 {
		d, err := lim.Allow(context.Background(), "user:42")
		if err != nil {
			log.Fatal(err) // no decision was made, for example because the key is empty
		}
		fmt.Println("allowed:", d.Allowed, "remaining:", d.Remaining)
	}
	// Output:
	// allowed: true remaining: 2
	// allowed: true remaining: 1
	// allowed: true remaining: 0
	// allowed: false remaining: 0
}

// Limits can be written as text, in a flag or a configuration file. The result has
// its defaults filled in, and errors point at the wrong word.
func ExampleParseLimit() {
	for _, text := range []string{
		"10/s",
		"30/1m burst=15",
		"100/1d rolling-window bucket=1h",
		"5/day zone=Asia/Shanghai fixed-window",
		"30/1m brust=15",
	} {
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("%d in %v by %v: %v\n", limit.Count, limit.Period, limit.Algorithm, limit)
	}
	// Output:
	// 10 in 1s by token-bucket: 10/1s
	// 30 in 1m0s by token-bucket: 30/1m burst=15
	// 100 in 24h0m0s by rolling-window: 100/1d rolling-window buckets=24
	// 5 in 24h0m0s by fixed-window: 5/day zone=Asia/Shanghai fixed-window
	// penstock: bad limit: text at column 7: "brust=15": unknown key; did you mean burst=?
}

// Thirty replies per minute, up to fifteen at once. The clock is fixed so that the
// output is always the same; a program does not set it.
func ExampleLimiter_Allow() {
	ctx := context.Background()
	now := time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	lim, _ := penstock.New(store, penstock.PerMinute(30).WithBurst(15))

	for range 15 {
		_, _ = lim.Allow(ctx, "user:42:reply")
	}
	d, _ := lim.Allow(ctx, "user:42:reply")
	fmt.Println("the sixteenth:", d.Allowed, "retry after", d.RetryAfter)

	d, _ = lim.Allow(ctx, "user:43:reply")
	fmt.Println("another user:", d.Allowed)

	now = now.Add(2 * time.Second)
	d, _ = lim.Allow(ctx, "user:42:reply")
	fmt.Println("two seconds later:", d.Allowed)
	// Output:
	// the sixteenth: false retry after 2s
	// another user: true
	// two seconds later: true
}

// A request may cost more than one unit: rows read, bytes sent, messages in a
// batch. It takes all of them or none. A cost above the burst never fits.
func ExampleLimiter_AllowN() {
	ctx := context.Background()
	lim, _ := penstock.New(penstock.NewMemory(nil), penstock.PerDay(1000))

	for _, rows := range []int64{800, 300, 200, 5000} {
		d, _ := lim.AllowN(ctx, "tenant:7", rows)
		fmt.Println(rows, "rows:", d.Allowed, "remaining:", d.Remaining, "never:", d.RetryAfter == penstock.Never)
	}
	// Output:
	// 800 rows: true remaining: 200 never: false
	// 300 rows: false remaining: 200 never: false
	// 200 rows: true remaining: 0 never: false
	// 5000 rows: false remaining: 0 never: true
}

// A job that can do part of its work takes what is left.
func ExampleLimiter_AllowAtMost() {
	ctx := context.Background()
	lim, _ := penstock.New(penstock.NewMemory(nil), penstock.PerDay(1000))

	for range 3 {
		d, _ := lim.AllowAtMost(ctx, "newsletter", 600)
		fmt.Println("allowed:", d.Allowed, "mails to send now:", d.Granted)
	}
	// Output:
	// allowed: true mails to send now: 600
	// allowed: true mails to send now: 400
	// allowed: false mails to send now: 0
}

// A charge is for what was used already: what is not left is a debt, which time pays.
func ExampleLimiter_Charge() {
	ctx := context.Background()
	now := time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	lim, _ := penstock.New(store, penstock.PerMinute(6000))

	d, _ := lim.Charge(ctx, "tenant:7", 7500) // the tokens of a response
	fmt.Println("charged:", d.Granted, "remaining:", d.Remaining)

	d, _ = lim.Allow(ctx, "tenant:7")
	fmt.Println("allowed:", d.Allowed, "retry after", d.RetryAfter)
	// Output:
	// charged: 7500 remaining: 0
	// allowed: false retry after 15.01s
}

// A process that has just started makes a third of the calls at first.
// A budget of tokens for a language model: reserve an estimate before the call, and settle
// what the response has really used, under a limit by the minute and one by the day.
func ExampleTakeAll_settle() {
	store := penstock.NewMemory(nil)
	minute := penstock.PerMinute(10_000)
	day := penstock.Limit{Algorithm: penstock.FixedWindow, Count: 50_000, Period: 24 * time.Hour}
	budget := func(tokens int64, settle bool) []penstock.Request {
		return []penstock.Request{
			{Key: "team-9", Limit: minute, Cost: tokens, ID: "call-1", Settle: settle},
			{Key: "team-9", Limit: day, Cost: tokens, ID: "call-1", Settle: settle},
		}
	}
	ctx, decisions := context.Background(), make([]penstock.Decision, 2)
	if err := penstock.TakeAll(ctx, store, budget(4000, false), decisions); err != nil {
		log.Fatal(err)
	}
	fmt.Println("allowed:", penstock.Tightest(decisions).Allowed)

	// The response has used 812 tokens. Without an answer, settle again.
	if err := penstock.TakeAll(ctx, store, budget(812, true), decisions); err != nil {
		log.Fatal(err)
	}
	fmt.Println("charged today:", decisions[1].Granted, "left today:", decisions[1].Remaining)
	// Output:
	// allowed: true
	// charged today: 812 left today: 49188
}

func ExampleLimiter_Settle() {
	lim, err := penstock.New(penstock.NewMemory(nil), penstock.PerHour(100))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	estimate := lim.Request("alice")
	estimate.Cost, estimate.ID = 40, "job-7"
	if _, err = lim.Store().Take(ctx, estimate); err != nil {
		log.Fatal(err)
	}
	d, err := lim.Settle(ctx, "alice", "job-7", 55)
	fmt.Println(d.Granted, err)
	_, err = lim.Settle(ctx, "alice", "job-8", 55)
	fmt.Println(errors.Is(err, penstock.ErrUnknownID))
	// Output:
	// 55 <nil>
	// true
}

func ExampleWithWarmUp() {
	ctx := context.Background()
	store := penstock.WithWarmUp(penstock.NewMemory(nil), time.Minute)
	lim, _ := penstock.New(store, penstock.PerHour(90))

	d, _ := lim.AllowAtMost(ctx, "backend", 1000)
	fmt.Println("granted:", d.Granted, "of", d.Limit)
	// Output:
	// granted: 30 of 90
}

// Requests that may wait keep some units free for those that may not.
func ExampleLimiter_KeepFree() {
	ctx := context.Background()
	critical, _ := penstock.New(penstock.NewMemory(nil), penstock.PerHour(100))
	batch := critical.KeepFree(20)

	d, _ := batch.AllowAtMost(ctx, "tenant:7", 1000)
	fmt.Println("batch:", d.Granted)
	d, _ = batch.Allow(ctx, "tenant:7")
	fmt.Println("batch:", d.Allowed, "remaining:", d.Remaining)
	d, _ = critical.Allow(ctx, "tenant:7")
	fmt.Println("critical:", d.Allowed, "remaining:", d.Remaining)
	// Output:
	// batch: 80
	// batch: false remaining: 20
	// critical: true remaining: 19
}

// Peek is for displaying the state of a key. Do not use it to decide: another
// request may take the last unit in between.
func ExampleLimiter_Peek() {
	ctx := context.Background()
	now := time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	lim, _ := penstock.New(store, penstock.PerHour(60))

	_, _ = lim.AllowN(ctx, "user:42", 20)
	for range 2 {
		d, _ := lim.Peek(ctx, "user:42")
		fmt.Printf("%d of %d left, full in %v\n", d.Remaining, d.Limit, d.ResetAfter)
	}
	// Output:
	// 40 of 60 left, full in 20m0s
	// 40 of 60 left, full in 20m0s
}

// The units of a request that was allowed but not carried out can be refunded. A
// refund is never more than was taken.
func ExampleLimiter_Refund() {
	ctx := context.Background()
	lim, _ := penstock.New(penstock.NewMemory(nil), penstock.PerDay(10))

	_, _ = lim.AllowN(ctx, "user:42:export", 4)
	d, _ := lim.Refund(ctx, "user:42:export", 3)
	fmt.Println("granted:", d.Granted, "remaining:", d.Remaining)
	d, _ = lim.Refund(ctx, "user:42:export", 3)
	fmt.Println("granted:", d.Granted, "remaining:", d.Remaining)
	// Output:
	// granted: -3 remaining: 9
	// granted: -1 remaining: 10
}

// Reset unblocks a key, for example on request of a user.
func ExampleLimiter_Reset() {
	ctx := context.Background()
	lim, _ := penstock.New(penstock.NewMemory(nil), penstock.PerDay(3))

	_, _ = lim.AllowN(ctx, "user:42:password", 3)
	d, _ := lim.Allow(ctx, "user:42:password")
	fmt.Println("before:", d.Allowed)

	_ = lim.Reset(ctx, "user:42:password")
	d, _ = lim.Allow(ctx, "user:42:password")
	fmt.Println("after:", d.Allowed)
	// Output:
	// before: false
	// after: true
}

// Wait paces calls to another server: here at most a thousand per second, a
// millisecond apart. If the context would end before a unit is available, it fails
// at once.
func ExampleLimiter_Wait() {
	ctx := context.Background()
	store := penstock.NewMemory(nil)
	lim, _ := penstock.New(store, penstock.PerSecond(1000).WithBurst(1))
	for page := range 3 {
		if err := lim.Wait(ctx, "api.example.com"); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("fetch page", page)
	}

	slow, _ := penstock.New(store, penstock.PerHour(1))
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fmt.Println(slow.Wait(ctx, "api.example.com"))
	fmt.Println(errors.Is(slow.Wait(ctx, "api.example.com"), penstock.ErrDeadline))
	// Output:
	// fetch page 0
	// fetch page 1
	// fetch page 2
	// <nil>
	// true
}

// WaitN waits for several units at once, such as the bytes of a chunk. More than
// the burst is never available at once.
func ExampleLimiter_WaitN() {
	ctx := context.Background()
	lim, _ := penstock.New(penstock.NewMemory(nil), penstock.PerSecond(1_000_000).WithBurst(4096))

	for _, chunk := range []int64{4096, 1000, 5000} {
		if err := lim.WaitN(ctx, "upload:9", chunk); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("send", chunk, "bytes")
	}
	// Output:
	// send 4096 bytes
	// send 1000 bytes
	// penstock: cost exceeds what the limit can ever grant: 5000 of at most 4096
}

// Reserve charges now and leaves the waiting to the caller, which may do something
// else meanwhile, or cancel the reservation.
func ExampleLimiter_Reserve() {
	ctx := context.Background()
	lim, _ := penstock.New(penstock.NewMemory(nil), penstock.PerHour(1))

	first, _ := lim.Reserve(ctx, "report")
	fmt.Println("the first acts in", first.Delay().Round(time.Minute))
	second, _ := lim.Reserve(ctx, "report")
	fmt.Println("the second acts in", second.Delay().Round(time.Minute))

	_ = second.Cancel(ctx)
	third, _ := lim.Reserve(ctx, "report")
	fmt.Println("the third takes its place, in", third.Delay().Round(time.Minute))
	// Output:
	// the first acts in 0s
	// the second acts in 1h0m0s
	// the third takes its place, in 1h0m0s
}

// A retry that carries the ID of the first attempt is charged once and gets the
// same grant, whether or not the first response arrived. A refund with the ID
// refunds that take, once.
// Two reports at once for each customer, over all processes that share a store.
func ExampleLimiter_Acquire() {
	ctx := context.Background()
	limit, err := penstock.ParseLimit("2/30s concurrent")
	if err != nil {
		log.Fatal(err)
	}
	lim, err := penstock.New(penstock.NewMemory(nil), limit)
	if err != nil {
		log.Fatal(err)
	}

	for i := range 3 {
		p, d, err := lim.Acquire(ctx, "customer:42")
		switch {
		case err != nil:
			log.Fatal(err)
		case !d.Allowed:
			fmt.Println("report", i, "has to wait")
			continue
		}
		fmt.Println("report", i, "runs")
		defer p.Release() // and pass p.Context() to the work, which ends if the permit is lost
	}
	// Output:
	// report 0 runs
	// report 1 runs
	// report 2 has to wait
}

func ExampleRequest_id() {
	ctx := context.Background()
	store := penstock.NewMemory(nil)
	r := penstock.Request{Key: "user:42:payment", Limit: penstock.PerDay(10), Cost: 4, ID: "order-1001"}

	for range 2 {
		d, _ := store.Take(ctx, r)
		fmt.Println("allowed:", d.Allowed, "granted:", d.Granted, "remaining:", d.Remaining)
	}
	r.Cost = -4
	for range 2 {
		d, _ := store.Take(ctx, r)
		fmt.Println("granted:", d.Granted, "remaining:", d.Remaining)
	}
	// Output:
	// allowed: true granted: 4 remaining: 6
	// allowed: true granted: 4 remaining: 6
	// granted: -4 remaining: 10
	// granted: 0 remaining: 10
}

// Independent requests in one call: a denial of one tenant does not affect the
// others.
func ExampleTakeEach() {
	ctx := context.Background()
	store := penstock.NewMemory(nil)
	lines := penstock.PerHour(100)
	rs := []penstock.Request{
		{Key: "tenant:red", Limit: lines, Cost: 30},
		{Key: "tenant:green", Limit: lines, Cost: 300},
		{Key: "tenant:blue", Limit: lines, Cost: 100},
	}

	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeEach(ctx, store, rs, ds); err != nil {
		fmt.Println(err)
	}
	for i, d := range ds {
		fmt.Println(rs[i].Key, d.Allowed, d.Remaining)
	}
	// Output:
	// tenant:red true 70
	// tenant:green false 100
	// tenant:blue true 0
}

// One request, three limits: per address, per user, and global. It must pass all of
// them. If one denies, the others are not charged: a user over the limit cannot use
// up the global limit.
func ExampleTakeAll() {
	ctx := context.Background()
	store := penstock.NewMemory(nil)
	rs := []penstock.Request{
		{Key: "address:192.0.2.7", Limit: penstock.PerHour(20), Cost: 1},
		{Key: "user:42", Limit: penstock.PerHour(2), Cost: 1},
		{Key: "global", Limit: penstock.PerHour(100), Cost: 1},
	}

	ds := make([]penstock.Decision, len(rs))
	for range 3 {
		if err := penstock.TakeAll(ctx, store, rs, ds); err != nil {
			fmt.Println(err)
		}
		denied := slices.IndexFunc(ds, func(d penstock.Decision) bool { return !d.Allowed })
		if denied >= 0 {
			fmt.Print("denied by ", rs[denied].Key, "; ")
		}
		fmt.Println("remaining:", ds[0].Remaining, ds[1].Remaining, ds[2].Remaining)
	}
	// Output:
	// remaining: 19 1 99
	// remaining: 18 0 98
	// denied by user:42; remaining: 18 0 98
}

// Five text messages per phone number and day, from midnight to midnight in
// Shanghai, wherever the server is.
func ExampleLimit_calendar() {
	ctx := context.Background()
	shanghai := time.FixedZone("GMT+8", 8*60*60)
	now := time.Date(2026, time.March, 2, 23, 58, 0, 0, shanghai)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	codes, _ := penstock.New(store, penstock.Limit{
		Algorithm: penstock.FixedWindow,
		Count:     5,
		Align:     penstock.AlignDay,
		Zone:      "Asia/Shanghai",
	})

	for range 5 {
		d, _ := codes.Allow(ctx, "+86 10 5555 0100")
		fmt.Println("sent:", d.Allowed, "and that was the last one:", d.Allowed && d.Remaining == 0)
	}
	d, _ := codes.Allow(ctx, "+86 10 5555 0100")
	fmt.Println("sent:", d.Allowed, "again in", d.RetryAfter)

	now = now.Add(d.RetryAfter)
	d, _ = codes.Allow(ctx, "+86 10 5555 0100")
	fmt.Println("sent:", d.Allowed, "at", now.Format("15:04"))
	// Output:
	// sent: true and that was the last one: false
	// sent: true and that was the last one: false
	// sent: true and that was the last one: false
	// sent: true and that was the last one: false
	// sent: true and that was the last one: true
	// sent: false again in 2m0s
	// sent: true at 00:00
}

// A leaky bucket turns bursts into an even stream. Each request is allowed with the
// delay of its turn in a queue; the burst is the length of the queue.
func ExampleLimit_leakyBucket() {
	ctx := context.Background()
	now := time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	lim, _ := penstock.New(store, penstock.PerSecond(10).WithBurst(3).WithAlgorithm(penstock.LeakyBucket))

	for range 4 {
		d, _ := lim.Allow(ctx, "printer")
		if d.Allowed {
			fmt.Println("act after", d.Delay)
		} else {
			fmt.Println("the queue is full; retry after", d.RetryAfter)
		}
	}
	// Output:
	// act after 0s
	// act after 100ms
	// act after 200ms
	// the queue is full; retry after 100ms
}

// With a MaxDelay a token bucket reserves units that it will have soon: they are
// charged now, to be used after the delay. A request that would have to wait longer
// is denied.
func ExampleRequest_maxDelay() {
	ctx := context.Background()
	now := time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	r := penstock.Request{
		Key:      "user:42",
		Limit:    penstock.PerSecond(10).WithBurst(2),
		Cost:     1,
		MaxDelay: 150 * time.Millisecond,
	}

	for range 4 {
		d, _ := store.Take(ctx, r)
		fmt.Println("allowed:", d.Allowed, "act after", d.Delay)
	}
	// Output:
	// allowed: true act after 0s
	// allowed: true act after 0s
	// allowed: true act after 100ms
	// allowed: false act after 0s
}

// Limits of one name share their state, so a limit can be changed while it is in
// use. Without a name, another count is another limit, with a state of its own.
func ExampleLimit_WithName() {
	ctx := context.Background()
	store := penstock.NewMemory(nil)
	daily := penstock.PerDay(100).WithAlgorithm(penstock.FixedWindow).WithName("uploads")

	lim, _ := penstock.New(store, daily)
	d, _ := lim.AllowN(ctx, "user:42", 90)
	fmt.Println("of", d.Limit, "remain", d.Remaining)

	daily.Count = 500
	lim, _ = penstock.New(store, daily)
	d, _ = lim.Peek(ctx, "user:42")
	fmt.Println("of", d.Limit, "remain", d.Remaining)
	// Output:
	// of 100 remain 10
	// of 500 remain 410
}

// A wrapper can be a function. This one counts denials per key; others might log
// or measure.
func ExampleStoreFunc() {
	ctx := context.Background()
	memory := penstock.NewMemory(nil)
	denials := map[string]int{}
	counting := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		d, err := memory.Take(ctx, r)
		if err == nil && !d.Allowed {
			denials[r.Key]++
		}
		return d, err
	})

	lim, _ := penstock.New(counting, penstock.PerDay(2))
	for range 5 {
		_, _ = lim.Allow(ctx, "user:42")
	}
	_, _ = lim.Allow(ctx, "user:43")
	fmt.Println(denials)
	// Output:
	// map[user:42:3]
}

// Metrics of a program. The store is observed once, and both limiters are made with the result, so
// that one call decides both.
func ExampleWithObserver() {
	ctx := context.Background()
	store := penstock.WithObserver(penstock.NewMemory(nil), func(o penstock.Observation) {
		fmt.Printf("%s of %s: allowed=%v, %d units\n", o.Request.Limit.Name, o.Request.Key, o.Decision.Allowed, o.Decision.Granted)
	})
	address, _ := penstock.New(store, penstock.PerHour(100).WithName("address"))
	user, _ := penstock.New(store, penstock.PerHour(1).WithBurst(1).WithName("user"))

	for range 2 {
		rs := []penstock.Request{address.Request("192.0.2.7"), user.Request("ann")}
		_ = penstock.TakeAll(ctx, store, rs, make([]penstock.Decision, len(rs)))
	}
	// Output:
	// address of 192.0.2.7: allowed=true, 1 units
	// user of ann: allowed=true, 1 units
	// address of 192.0.2.7: allowed=true, 0 units
	// user of ann: allowed=false, 0 units
}

// A wrapper that only watches names the store that it wraps, whose type can then be found.
func ExampleStoreAs() {
	store := penstock.WithObserver(penstock.NewMemory(nil), func(penstock.Observation) {})
	memory, ok := penstock.StoreAs[*penstock.Memory](store)
	fmt.Println(memory.Stats().Keys, ok)
	// Output:
	// 0 true
}

// A store is bounded. This one has room for two keys, which is far too few: when it
// is full, new keys share one overflow bucket, and active keys keep their state.
func ExampleMemoryOptions() {
	ctx := context.Background()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 2})
	lim, _ := penstock.New(store, penstock.PerDay(1))

	for _, key := range []string{"ann", "bob", "cy", "dee", "ann"} {
		d, _ := lim.Allow(ctx, key)
		fmt.Println(key, d.Allowed)
	}
	stats := store.Stats()
	fmt.Println("keys:", stats.Keys, "overflow decisions:", stats.OverflowDecisions)
	// Output:
	// ann true
	// bob true
	// cy true
	// dee false
	// ann false
	// keys: 2 overflow decisions: 2
}

// Redis is down, and two processes share a limit of ten a day: each of them applies
// half of it. When Redis is up again, it is charged for what was granted meanwhile.
func ExampleWithFallback() {
	redis := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable // as a Redis store returns it
	})
	store := penstock.WithFallback(redis, nil, &penstock.FallbackOptions{Share: 1.0 / 2})
	lim, _ := penstock.New(store, penstock.PerDay(10))

	for range 6 {
		d, err := lim.Allow(context.Background(), "user:42")
		fmt.Println(d.Allowed, d.Source, err)
	}
	// Output:
	// true fallback <nil>
	// true fallback <nil>
	// true fallback <nil>
	// true fallback <nil>
	// true fallback <nil>
	// false fallback <nil>
}

// A client retries a thousand times. The store is called only while it has units;
// after that, the cached denial is repeated.
func ExampleWithDenyCache() {
	calls := 0
	memory := penstock.NewMemory(nil)
	remote := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		calls++
		return memory.Take(ctx, r)
	})
	now := time.Now()
	store := penstock.WithDenyCache(remote, &penstock.DenyCacheOptions{Now: func() time.Time { return now }})
	lim, _ := penstock.New(store, penstock.PerDay(5))

	var d penstock.Decision
	for range 1000 {
		d, _ = lim.Allow(context.Background(), "user:42")
	}
	fmt.Println(d.Allowed, d.Source, "after", calls, "calls")
	// Output: false deny-cache after 5 calls
}

// Requests for a busy key call the store only now and then. Unused units are
// returned by Close.
func ExampleWithLease() {
	ctx := context.Background()
	memory := penstock.NewMemory(nil) // in place of a remote store
	store := penstock.WithLease(memory, nil)
	lim, _ := penstock.New(store, penstock.PerDay(100_000))

	local := 0
	for range 1000 {
		if d, _ := lim.Allow(ctx, "global"); d.Source == penstock.SourceLease {
			local++
		}
	}
	fmt.Println("most decisions were local:", local > 500)
	fmt.Println(store.Close(ctx))
	// Output:
	// most decisions were local: true
	// <nil>
}

// A quota survives a restart of the process.
func ExampleMemory_Snapshot() {
	ctx := context.Background()
	store := penstock.NewMemory(&penstock.MemoryOptions{Durable: true})
	lim, _ := penstock.New(store, penstock.PerDay(5))
	_, _ = lim.AllowN(ctx, "user:42", 3)
	var file bytes.Buffer
	if err := store.Snapshot(&file); err != nil {
		log.Fatal(err)
	}

	store, err := penstock.RestoreMemory(&file, nil)
	if err != nil {
		log.Fatal(err) // the snapshot is damaged, or does not fit
	}
	lim, _ = penstock.New(store, penstock.PerDay(5))
	d, _ := lim.Peek(ctx, "user:42")
	fmt.Println("remaining:", d.Remaining)
	// Output: remaining: 2
}
