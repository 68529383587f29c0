package respapi

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A key exists until its last nanosecond.
func TestKeysExistUntilLastNanosecond(t *testing.T) {
	clock := newFakeClock()
	c := newFakeClient(newServerWithClock(clock))
	c.do(t, "CL.THROTTLE", "alice", "0", "1", "1")
	clock.add(time.Second - time.Nanosecond)
	for name, want := range map[string]string{"PTTL": ":1", "TTL": ":0", "EXISTS": ":1", "TYPE": "+string", "GET": `"1772442001000000000"`} {
		if got := c.do(t, name, "alice"); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	clock.add(time.Nanosecond)
	if got := c.do(t, "PTTL", "alice"); got != ":-2" {
		t.Errorf("PTTL: got %s, want :-2", got)
	}
}

// Reading a key does not change Redis, whatever limit the key was taken from with.
func TestKeyCommandsWriteNothing(t *testing.T) {
	clock := newFakeClock()
	redisServer.Clock.Set(clock.now())
	c := newFakeClient(newServer(t, newRedisStore(t, redisServer), clock, nil, nil))
	c.do(t, "CL.THROTTLE", "short", "15", "7", "60")
	c.do(t, "CL.THROTTLE", "middle", "50", "1", "86400", "51") // 51 days
	c.do(t, "CL.THROTTLE", "long", "99", "7", "31536000", "100")
	dump := func() string {
		all, err := redisServer.Command("EVAL", `
			local all = {}
			for _, key in ipairs(redis.call('KEYS', 'r`+fmt.Sprint(prefixes.Load())+`-*')) do
				all[#all + 1] = key .. ' ' .. redis.call('GET', key) .. ' ' .. redis.call('PTTL', key)
			end
			table.sort(all)
			return all`, "0")
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := dump()
	if strings.Count(before, "\n") != 2 {
		t.Fatalf("want three keys, got\n%s", before)
	}
	for _, key := range []string{"short", "middle", "long"} {
		for _, name := range []string{"GET", "TTL", "PTTL", "EXISTS", "TYPE"} {
			if got := c.do(t, name, key); got == ":0" || got == ":-2" || got == "$-1" || got == "+none" {
				t.Errorf("%s %s: got %s", name, key, got)
			}
		}
	}
	if after := dump(); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}
