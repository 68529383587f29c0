package redisstore_test

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// A slotsClient treats one server as a Cluster, and counts round trips.
type slotsClient struct {
	appClient
	rounds     int
	beforeTake func() // runs before the second round trip
}

func (c *slotsClient) Do(ctx context.Context, calls []redisstore.Call) {
	if c.rounds++; c.rounds == 2 && c.beforeTake != nil {
		c.beforeTake()
	}
	c.appClient.Do(ctx, calls)
}

func (c *slotsClient) Sharded() bool { return true }

// Over several slots all keys are tried in one round trip and taken from in another. What
// was taken is refunded in a third if a key is denied only then.
func TestTakeAllAcrossSlotsRoundTrips(t *testing.T) {
	for _, l := range batchedAlgorithms() {
		prefix := newPrefix()
		client := &slotsClient{appClient: newAppClient(t, fakeClockServer)}
		store, err := redisstore.New(client, &redisstore.Options{Timeout: longTimeout, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		other := openFakeClock(t, redisstore.Options{Prefix: prefix})
		take(t, store, penstock.Request{Key: "1", Limit: l}) // learns the server's clock
		for _, step := range []struct {
			cost, between    int64
			allowed          bool
			rounds           int
			remaining, third int64
		}{
			{cost: 1, allowed: true, rounds: 2, remaining: 9, third: 9},
			{cost: 2, between: 8, allowed: false, rounds: 3, remaining: 9, third: 1},
			{cost: 2, allowed: false, rounds: 1, remaining: 9, third: 1},
		} {
			client.rounds = 0
			client.beforeTake = func() { take(t, other, penstock.Request{Key: "3", Limit: l, Cost: step.between}) }
			ds := takeAll(t, store, l, step.cost, "1", "2", "3")
			if allAllowed(ds) != step.allowed || client.rounds != step.rounds {
				t.Errorf("%s, cost %d: got %+v in %d round trips, want %+v", l, step.cost, ds, client.rounds, step)
			}
			if ds[0].Remaining != step.remaining || ds[2].Remaining != step.third || !ds[0].Allowed || !step.allowed && ds[0].Granted != 0 {
				t.Errorf("%s, cost %d: got %+v, want %+v", l, step.cost, ds, step)
			}
			if d := take(t, other, penstock.Request{Key: "1", Limit: l}); d.Remaining != step.remaining {
				t.Errorf("%s, cost %d: %d left, want %d", l, step.cost, d.Remaining, step.remaining)
			}
		}
	}
}
