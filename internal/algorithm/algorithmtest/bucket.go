package algorithmtest

import (
	"fmt"
	"math/big"

	"github.com/penstock-io/penstock/internal/algorithm"
)

var (
	tokenBucket = newKind("token-bucket", row{
		bucket: true, debt: true,
		newKey:    func() key { return &bucketKey{} },
		newLedger: func(l limit) ledger { return &bucketLedger{rate: l.rate, missing: new(big.Rat)} },
		refill:    refillRate,
	})
	leakyBucket = newKind("leaky-bucket", row{
		bucket: true, debt: true,
		newKey:    func() key { return &bucketKey{leaky: true} },
		newLedger: func(l limit) ledger { return &queueLedger{bucketLedger{rate: l.rate, missing: new(big.Rat)}} },
		refill:    refillRate,
	})
)

func refillRate(l limit, _ int64) int64 { return wholeTicks(whole(l.rate.MaxDebt()), l.tick).Int64() }

// A bucketKey is a key of a token or a leaky bucket, which differ in what they decide only.
type bucketKey struct {
	algorithm.Rate
	leaky  bool // not a func: models compare states, and funcs are never equal
	bucket algorithm.Bucket
}

func (k *bucketKey) decider() bucketDecider {
	if k.leaky {
		return &algorithm.LeakyBucket{Rate: k.Rate}
	}
	return &algorithm.TokenBucket{Rate: k.Rate}
}

type bucketDecider interface {
	Decide(b algorithm.Bucket, now int64, req algorithm.Request) (algorithm.Bucket, algorithm.Outcome)
}

func (k *bucketKey) decide(now int64, req algorithm.Request) (r result) {
	k.bucket, r.Outcome = k.decider().Decide(k.bucket, now, req)
	r.Balance = k.Balance(max(k.bucket.Full-now, 0))
	return r
}

func (k *bucketKey) refundDue(now, units, due int64) (r result) {
	k.bucket, r.Outcome = k.RefundDue(k.bucket, now, units, due)
	r.Balance = k.Balance(max(k.bucket.Full-now, 0))
	return r
}

func (k *bucketKey) change(l limit) { k.Rate = l.rate }

func (k *bucketKey) fork() key { copied := *k; return &copied }

func (k *bucketKey) state(int64) string { return fmt.Sprintf("%+v", k.bucket) }

func (k *bucketKey) valid(now int64) bool {
	b := k.bucket
	return b == algorithm.Bucket{} || b.Full > now && b.Full-now <= k.MaxDebt()
}

// A bucketLedger is a bucket of tokens, with fractions. It stores how many are missing;
// with reservations, more than the burst are missing.
type bucketLedger struct {
	rate    algorithm.Rate
	missing *big.Rat
	at      int64 // when so many were missing
}

func (b *bucketLedger) max() int64 { return b.rate.Burst }

// missingAt returns how many tokens are missing at t, after one has refilled per
// interval.
func (b *bucketLedger) missingAt(t int64) *big.Rat {
	dripped := big.NewRat(t-b.at, b.rate.Interval)
	left := new(big.Rat).Sub(b.missing, dripped)
	if left.Sign() < 0 {
		left.SetInt64(0)
	}
	return left
}

// wait returns how many nanoseconds after t the bucket has n tokens.
func (b *bucketLedger) wait(t, n int64) *big.Rat {
	short := b.missingAt(t)
	short.Add(short, whole(n))
	short.Sub(short, whole(b.rate.Burst))
	return short.Mul(short, whole(b.rate.Interval))
}

// reach is how far ahead tokens may be reserved: a minute, or the time in which
// an empty bucket fills.
func (b *bucketLedger) reach() *big.Rat {
	const minute = 60_000_000_000
	fill := new(big.Rat).Mul(whole(b.rate.Burst), whole(b.rate.Interval))
	if fill.Cmp(whole(minute)) < 0 {
		return whole(minute)
	}
	return fill
}

func (b *bucketLedger) fits(t, n, maxDelay int64) bool {
	wait := b.wait(t, n)
	if maxDelay == 0 {
		return wait.Sign() <= 0
	}
	return n <= b.rate.Burst && wait.Cmp(b.reach()) <= 0 &&
		wholeTicks(wait, b.rate.Tick).Cmp(big.NewInt(maxDelay)) <= 0
}

func (b *bucketLedger) unused(t int64) bool { return b.missingAt(t).Sign() == 0 }

func (b *bucketLedger) delay(t, n int64) int64 {
	return max(wholeTicks(b.wait(t, n), b.rate.Tick).Int64(), 0)
}

func (b *bucketLedger) charge(now, n int64) {
	b.set(now, new(big.Rat).Add(b.missingAt(now), whole(n)))
}

// room is how many whole tokens may go missing beyond those that are.
func (b *bucketLedger) room(t int64) int64 {
	return last(0, b.rate.Burst+b.rate.Overdraft, func(n int64) bool {
		level := new(big.Rat).Add(b.missingAt(t), whole(n))
		return n == 0 || level.Cmp(whole(b.rate.Burst+b.rate.Overdraft)) <= 0
	})
}

func (b *bucketLedger) refund(now, n int64) int64 {
	missing := b.missingAt(now)
	given := min(n, ceil(missing).Int64())
	if given == 0 {
		return 0
	}
	missing.Sub(missing, whole(given))
	if missing.Sign() < 0 {
		missing.SetInt64(0)
	}
	b.set(now, missing)
	return given
}

func (b *bucketLedger) set(now int64, missing *big.Rat) {
	b.at, b.missing = now, missing
}

// truncate leaves at most a whole bucket missing, and beyond that what may be reserved
// or overdrawn. A bucket that holds nothing keeps what is missing for up to 2^52 ns.
func (b *bucketLedger) truncate(now int64) {
	beyond := b.reach()
	if b.rate.Burst == 0 {
		beyond = whole(1 << 52)
	}
	beyond.Quo(beyond, whole(b.rate.Interval))
	if overdraft := whole(b.rate.Overdraft); beyond.Cmp(overdraft) < 0 {
		beyond = overdraft
	}
	most := beyond.Add(beyond, whole(b.rate.Burst))
	missing := b.missingAt(now)
	if missing.Cmp(most) > 0 {
		missing = most
	}
	b.set(now, missing)
}

// change keeps the time in which the missing tokens refill at the old rate.
func (b *bucketLedger) change(l limit) {
	b.missing.Mul(b.missing, big.NewRat(b.rate.Interval, l.rate.Interval))
	b.rate = l.rate
}

// A queueLedger is a queue that one unit leaves per interval: what is missing from a
// bucket of tokens waits in the queue.
type queueLedger struct{ bucketLedger }

func (q *queueLedger) fits(t, n, maxDelay int64) bool {
	level := new(big.Rat).Add(q.missingAt(t), whole(n))
	return level.Cmp(whole(q.rate.Burst)) <= 0 && (maxDelay == 0 || q.delay(t, n) <= maxDelay)
}

// delay is how long it takes for what waits at t to leave.
func (q *queueLedger) delay(t, _ int64) int64 {
	ahead := q.missingAt(t)
	return wholeTicks(ahead.Mul(ahead, whole(q.rate.Interval)), q.rate.Tick).Int64()
}
