package server

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
)

// A canary is a key of this process in one shard of the store. If it is gone before it
// expires, other keys are lost too: the server was flushed, or restarted without its data.
// It is an ordinary counter, so it is lost in the same ways as others.
type canary struct {
	key   string
	until time.Time // when it expires; zero if it does not exist yet
}

// canaryLimit makes a canary expire after a day.
var canaryLimit = penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1, Period: 24 * time.Hour, Name: "penstock.canary"}

// canaryRenewal is how long before its expiry a canary is written again. From then on its
// absence is not a loss.
const canaryRenewal = time.Minute

// newCanaries finds a key for every shard.
func newCanaries(remote monitoredStore) []canary {
	process, found := rand.Text(), 0
	canaries := make([]canary, remote.Shards())
	for n := 0; found < len(canaries); n++ {
		key := "canary/" + process + "/" + strconv.Itoa(n)
		if c := &canaries[remote.ShardOf(key)]; c.key == "" {
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

// checkCanaries reports lost canaries. It writes them again first, so that the next loss is
// noticed as well.
func (m *monitor) checkCanaries(ctx context.Context) {
	gone := m.touchCanaries(ctx)
	if gone == 0 {
		return
	}
	m.touchCanaries(ctx)
	m.metrics.stateLosses.WithLabelValues(m.label, reasonKeysGone).Inc()
	m.log.Warn(m.name+" lost state, counters restarted", "shards", gone, "of", len(m.canaries))
}

// touchCanaries writes the canaries that are due, peeks at the others, and returns how many
// of these are gone.
func (m *monitor) touchCanaries(ctx context.Context) (gone int) {
	now := time.Now()
	requests := make([]penstock.Request, len(m.canaries))
	for i := range m.canaries {
		cost := int64(0)
		if m.canaries[i].isDue(now) {
			cost = 1
		}
		requests[i] = m.canaries[i].request(cost)
	}
	decisions := make([]penstock.Decision, len(requests))
	err := penstock.TakeEach(ctx, m.remote, requests, decisions)
	if err != nil && ctx.Err() != nil {
		return 0
	}
	if errors.Is(err, penstock.ErrBusy) { // it answers others
		err = nil
	}
	m.recordCheck(err)
	for i, d := range decisions {
		if m.canaries[i].isGone(now, requests[i].Cost, d) {
			gone++
		}
	}
	return gone
}

// isGone reports whether a peek found the canary missing, and records a write. A decision
// without a limit was not made.
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
