package redisstore_test

import (
	"context"
	"errors"
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
	runAgain(t, storetest.RunSequential, openShared(openURL(t, "redis://"+server.Addr, longTimeout), server))
	checkExpiry(t, server)
}

// Before version 7 Redis puts an error of a command behind the place in the script. The code in it counts
// nevertheless: a value of another program fails its own key, and a replica is left for the primary.
func TestErrorsOfScriptsOnOldServers(t *testing.T) {
	const place = "ERR Error running script (call to f_80d15f6c748349e0ed5484b470364f85ca8e2b37): @user_script:14: "
	for text, want := range map[string]string{
		place + "@user_script: 14: -READONLY You can't write against a read only replica.":    "READONLY",
		place + "@user_script: 14: -NOREPLICAS Not enough good replicas to write.":            "NOREPLICAS",
		place + "@user_script: 14: -OOM command not allowed when used memory > 'maxmemory'.":  "",
		place + "WRONGTYPE Operation against a key holding the wrong kind of value":           "foreign",
		place + "ERR value is not an integer or out of range":                                 "foreign",
		"ERR value is not an integer or out of range script: 720710f, on @user_script:1.":     "foreign",
		"READONLY You can't write against a read only replica. script: f, on @user_script:1.": "READONLY",
		"ERR Error running script (call to f_x): @user_script:1: READONLY":                    "",
		"ERR user_script:1: " + place + "READONLY as part of another text":                    "",
	} {
		code, foreign := redisstore.Classify(errors.New(text))
		if got := code + map[bool]string{true: "foreign"}[foreign]; got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// The same from end to end, with scripts that fail as on such a server.
func TestStoreForeignValueOnOldServerFailsItsKey(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{})
	store, err := redisstore.New(oldScripts{newAppClient(t, server)}, &redisstore.Options{Timeout: longTimeout})
	if err != nil {
		t.Fatal(err)
	}
	request := penstock.Request{Key: "k", Limit: penstock.PerMinute(10), Cost: 1}
	if _, err := store.Take(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	name := redistest.MustCommand(t, server, "RANDOMKEY")
	redistest.MustCommand(t, server, "DEL", name)
	redistest.MustCommand(t, server, "RPUSH", name, "a")
	redistest.MustCommand(t, server, "PEXPIRE", name, "3600000")
	var foreign *penstock.KeyError
	if _, err := store.Take(t.Context(), request); !errors.As(err, &foreign) {
		t.Errorf("got %v, want an error that names the key", err)
	}
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

// oldScripts runs scripts as Redis 6.0 does: PEXPIRETIME and PXAT are errors, and errors of commands are
// told behind their place in the script.
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
  local reply = new.pcall(...)
  if type(reply) == 'table' and reply.err then
    error({err = 'ERR Error running script (call to f_0): @user_script:1: ' .. reply.err})
  end
  return reply
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
