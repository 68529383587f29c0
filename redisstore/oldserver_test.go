package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/storetest"
)

// A server without the command stands for Redis 6.2. All decisions are the same, those under an
// ID and their expiries included.
func TestStoreConformanceWithoutPEXPIRETIME(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{FakeClock: true, Args: []string{"--rename-command", "PEXPIRETIME", ""}})
	storetest.RunSequential(t, openShared(openURL(t, "redis://"+server.Addr, longTimeout), server))
	checkExpiry(t, server)
}

// Redis 6.0 has no PXAT either. Scripts that refuse it stand for that server.
func TestStoreIDsWithoutPXAT(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{})
	store, err := redisstore.New(oldScripts{newAppClient(t, server)}, &redisstore.Options{Timeout: longTimeout})
	if err != nil {
		t.Fatal(err)
	}
	limit := penstock.Limit{Count: 10, Period: time.Hour}
	for i, c := range []struct {
		id        string
		cost      int64
		remaining int64
	}{{"a", 3, 7}, {"a", 3, 7}, {"b", 2, 5}, {"a", -1, 6}, {"a", -1, 6}} {
		d, err := store.Take(context.Background(), penstock.Request{Key: "k", Limit: limit, Cost: c.cost, ID: c.id})
		if err != nil || d.Remaining != c.remaining {
			t.Errorf("step %d: got %+v, %v, want %d left", i, d, err, c.remaining)
		}
	}
	redistest.CheckExpiry(t, server)
}

// oldScripts runs scripts as Redis 6.0 does: PEXPIRETIME and PXAT are errors.
type oldScripts struct{ appClient }

const oldCommands = `
local new = redis
local function lacks(name, ...)
  return name == 'PEXPIRETIME' or select(3, ...) == 'PXAT'
end
local redis = {error_reply = new.error_reply, pcall = function(...)
  if lacks(...) then return {err = 'ERR syntax error'} end
  return new.pcall(...)
end, call = function(...)
  if lacks(...) then error('ERR syntax error') end
  return new.call(...)
end}
`

func (c oldScripts) Do(ctx context.Context, calls []redisstore.Call) {
	for i := range calls {
		script := calls[i].Script
		defer func() { calls[i].Script = script }()
		calls[i].Script, calls[i].Text = redisstore.NewScript(script.Name, oldCommands+script.Text), true
	}
	c.appClient.Do(ctx, calls)
}
