package server

import (
	"context"
	"crypto/rand"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// A canary is a key of this process alone in one shard of Redis. If it is gone before
// its time, then so are others: the server was emptied, or came back without what it
// had. It is a count like any other, so whatever can happen to those happens to it.
type canary struct {
	key   string
	until time.Time // when it ends by itself; zero if it is not there yet
}

// canaryLimit is counted by for a day, and then anew.
var canaryLimit = penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1, Period: 24 * time.Hour, Name: "penstock.canary"}

// canaryRenewal is how long before its time nobody wonders about its end.
const canaryRenewal = time.Minute

// newCanaries finds a key for every shard.
func newCanaries(redis *redisstore.Store) []canary {
	process, found := rand.Text(), 0
	canaries := make([]canary, redis.Shards())
	for n := 0; found < len(canaries); n++ {
		key := "canary/" + process + "/" + strconv.Itoa(n)
		if c := &canaries[redis.ShardOf(key)]; c.key == "" {
			c.key = key
			found++
		}
	}
	return canaries
}

func (c *canary) request(cost int64) penstock.Request {
	return penstock.Request{Key: c.key, Limit: canaryLimit, Cost: cost}
}

func (c *canary) isDue(now time.Time) bool { return now.Add(canaryRenewal).After(c.until) }

// checkCanaries looks at all canaries. Those that are gone are set out again before anybody
// hears of it, so that the next loss is noticed as well.
func (o *monitor) checkCanaries(ctx context.Context) {
	gone := o.touchCanaries(ctx)
	if gone == 0 {
		return
	}
	o.touchCanaries(ctx)
	o.metrics.stateLosses.WithLabelValues(redisName, reasonKeysGone).Inc()
	o.log.Warn("Redis has lost what it counted: keys begin anew", "shards", gone, "of", len(o.canaries))
}

// touchCanaries sets out the canaries that are due, looks at the others, and returns how many
// of these are gone.
func (o *monitor) touchCanaries(ctx context.Context) (gone int) {
	now := time.Now()
	requests := make([]penstock.Request, len(o.canaries))
	for i := range o.canaries {
		cost := int64(0)
		if o.canaries[i].isDue(now) {
			cost = 1
		}
		requests[i] = o.canaries[i].request(cost)
	}
	decisions := make([]penstock.Decision, len(requests))
	err := penstock.TakeEach(ctx, o.redis, requests, decisions)
	if err != nil && ctx.Err() != nil {
		return 0
	}
	o.recordCheck(err)
	for i, d := range decisions {
		if o.canaries[i].isGone(now, requests[i].Cost, d) {
			gone++
		}
	}
	return gone
}

// isGone takes note of a decision about the canary. One without a limit was not made.
func (c *canary) isGone(now time.Time, cost int64, d penstock.Decision) bool {
	switch {
	case d.Limit == 0:
	case cost > 0:
		c.until = now.Add(d.ResetAfter)
	case d.Remaining > 0:
		c.until = time.Time{}
		return true
	}
	return false
}
