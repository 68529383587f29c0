package main

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/candidates"
	"github.com/penstock-io/penstock/server/observe"
)

// aFrame returns a frame of a server with some traffic.
func aFrame() *topFrame {
	noon := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	p50, p99 := 0.0000123, 0.0023
	return &topFrame{width: 100, sort: "decisions", live: observe.Live{
		Time: noon, Scope: observe.ScopeDaemon, Daemon: "web-1/7", Version: "v1.2.3", Started: noon.Add(-90 * time.Minute),
		Rates: observe.Rates{Decisions: 1234.5, Allowed: 1200, Denied: 30.2, Shadowed: 4.26}, Window: observe.TwoMinutes,
		Series:    observe.Series{Allowed: []uint64{0, 1, 2, 4, 8}, Denied: []uint64{0, 0, 0, 0, 8}},
		Listeners: []observe.Listener{{Name: "http", Connections: 3, Calls: 56789, P50: &p50, P90: &p50, P99: &p99}, {Name: "resp"}},
		Store:     observe.Store{Kind: "memory", Memory: &observe.Memory{Keys: 12345, MaxKeys: 1000000, Bytes: 3 << 20}},
		Process:   observe.Process{TotalBytes: 45 << 20, Goroutines: 23},
		Rules: []observe.RuleRow{
			{Name: "shop/user", Limit: `10/1m burst=5 name="shop/user"`, Rate: 1000, DeniedShare: 0.024, Decisions: []uint64{1, 2, 4, 8}},
			{Rate: 0.26, ShadowShare: 1},
		},
		RulesMatching: 5,
	}}
}

func TestTopShowsLive(t *testing.T) {
	want := strings.TrimPrefix(`
penstock v1.2.3  web-1/7  up 1h30m0s  12:00:00
1,235 decisions/s  30 denied/s  4.3 shadow denials/s  0 errors/s   ▁▁▂█

store memory: 12,345 of 1,000,000 keys, 3 MiB of logs  process: 45 MiB, 23 goroutines
http        3 connections        56,789 calls  50% 12.3µs   90% 12.3µs   99% 2.3ms
resp        0 connections             0 calls  50% -        90% -        99% -

DECISIONS/s   DENIED   SHADOW  LAST 2M                         RULE
      1,000    2.4 %      0 %  ▁▂▄█                            shop/user  10/1m burst=5
        0.3      0 %  100.0 %                                  (limits in requests)
3 more rules, by decisions
`, "\n")
	if got := strings.Join(aFrame().lines(), "\n") + "\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTopShowsHome(t *testing.T) {
	f := aFrame()
	f.live.Store.Home = &observe.Home{Down: true, Spent: 12345, Waited: 7, Lots: 60, Short: 2, Failed: 1, Lost: 30, LotAge: 4.1}
	const want = "\nhome down: 12,345 units from pools, 7 waited, 60 lots after 4.1s: 2 short, 1 failed, 30 lost\n"
	if got := strings.Join(f.lines(), "\n"); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant %s", got, want)
	}
}

func TestTopShowsKeys(t *testing.T) {
	f := aFrame()
	f.top = &observe.Top{
		Time: f.live.Time, By: observe.ByDenied, Enabled: true, Since: f.live.Time.Add(-90 * time.Second), Sampling: 8, Total: 4321,
		Keys: []observe.TopKey{
			{Rule: "shop/user", Key: "user=42", Guaranteed: 4000, Share: 0.92, Shadowed: 3},
			{Limit: "5/1m", Key: "a\uFFFD", KeyBase64: "Yf8=", Guaranteed: 2, Truncated: true},
		},
	}
	want := strings.TrimPrefix(`
denials since 11:58:30: 4,321, one in 8 sampled
     DENIALS    SHARE   SHADOWED  RULE                         KEY
       4,000   92.0 %          3  shop/user                    user=42
           2      0 %          0  5/1m                         base64:Yf8=…
`, "\n")
	if got := strings.Join(f.lines()[3:], "\n") + "\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	f.top.Enabled = false
	if got := f.lines()[3]; !strings.Contains(got, "--top-keys 0") {
		t.Errorf("without top keys: got %q", got)
	}
}

func TestTopWarns(t *testing.T) {
	f := aFrame()
	f.live.Scope, f.live.Daemons = observe.ScopeAll, []observe.Daemon{{Name: "web-1/7"}, {Name: "web-2/9", Missing: true}}
	f.live.Store = observe.Store{
		Kind: "redis", Degraded: true, Reasons: []string{"shard 0 is down"}, StateLosses: []observe.StateLoss{{Reason: "keys_gone", Count: 2}, {Reason: "new_run"}},
		Shards: []observe.Shard{{State: "down"}, {Shard: 1, State: "up"}}, Errors: 7,
	}
	f.failedReload = &adminapi.Reload{Errors: []adminapi.ReloadError{{File: "/etc/penstock/shop.yaml", Line: 6, Reason: "unknown key"}}}
	got := strings.Join(f.lines(), "\n")
	for _, want := range []string{
		"old rules in force, the last load failed: shop.yaml:6: unknown key",
		"all 2 daemons, seen by web-1/7", "decided without the store: shard 0 is down", "lost state 2 times (keys_gone)",
		"no news from web-2/9", "store redis: 1 of 2 shards up, 7 failed calls",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
	if strings.Contains(got, "new_run") {
		t.Errorf("got a loss that did not happen:\n%s", got)
	}
}

// Keys, names and reasons are texts of others. None of them may control the terminal.
func TestTopEscapesHostileText(t *testing.T) {
	hostile := "a\x1b[2J\r\n\u009b31m\u202e\x00\xffz"
	f := aFrame()
	f.live.Daemon, f.live.Version = hostile, hostile
	f.live.Store = observe.Store{Kind: hostile, Degraded: true, Reasons: []string{hostile}, StateLosses: []observe.StateLoss{{Reason: hostile, Count: 1}}}
	f.live.Listeners[0].Name, f.live.Rules[0].Name, f.live.Rules[1].Limit = hostile, hostile, hostile
	f.live.Daemons = []observe.Daemon{{Name: hostile, Missing: true}}
	f.failedReload = &adminapi.Reload{Errors: []adminapi.ReloadError{{File: hostile, Reason: hostile}}}
	live := f.lines()
	f.top = &observe.Top{Enabled: true, Keys: []observe.TopKey{{Rule: hostile, Key: hostile}, {Limit: hostile, KeyBase64: hostile}}}
	for _, line := range append(live, f.lines()...) {
		if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q has a character that does not print", line)
		}
	}
	if got := printable(`<img src="x">`); got != `<img src="x">` {
		t.Errorf("got %s, want it as it is", got)
	}
}

func TestTopColorsOnlyIfWanted(t *testing.T) {
	f := aFrame()
	plain := strings.Join(f.lines(), "\n")
	f.color = true
	colored := strings.Join(f.lines(), "\n")
	if strings.Contains(plain, "\x1b") || !strings.Contains(colored, "\x1b[31m30 denied/s\x1b[0m") {
		t.Errorf("got\n%q\nand\n%q", plain, colored)
	}
}

func TestTopKeysChangeTheView(t *testing.T) {
	c := &topCommand{view: viewLive, window: "2m", sort: "decisions", by: observe.ByAsked}
	for _, step := range []struct {
		key                    byte
		view, window, sort, by string
		quit                   bool
	}{
		{'d', viewKeys, "2m", "decisions", "denied", false},
		{'w', viewKeys, "1h", "decisions", "denied", false},
		{'w', viewKeys, "1d", "decisions", "denied", false},
		{'w', viewKeys, "2m", "decisions", "denied", false},
		{'l', viewLive, "2m", "decisions", "denied", false},
		{'s', viewLive, "2m", "denied", "denied", false},
		{'a', viewKeys, "2m", "denied", "asked", false},
		{'x', viewKeys, "2m", "denied", "asked", false},
		{'q', viewKeys, "2m", "denied", "asked", true},
		{3, viewKeys, "2m", "denied", "asked", true},
	} {
		if quit := c.press(step.key); quit != step.quit || c.view != step.view || c.window != step.window || c.sort != step.sort || c.by != step.by {
			t.Errorf("%q: got %+v and quit %t, want %+v", step.key, c, quit, step)
		}
	}
}

func TestSparklineFitsItsColumns(t *testing.T) {
	for _, c := range []struct {
		values  []uint64
		columns int
		want    string
	}{
		{nil, 10, ""},
		{[]uint64{1}, 0, ""},
		{[]uint64{0, 0}, 5, ""},
		{[]uint64{1, 0, 8}, 5, "▁ █"},
		{[]uint64{1, 1, 2, 2, 8, 8}, 3, "▁▂█"},
	} {
		if got := sparkline(c.values, c.columns); got != c.want {
			t.Errorf("%v in %d: got %q, want %q", c.values, c.columns, got, c.want)
		}
	}
}

func TestTopComparesCandidates(t *testing.T) {
	f := aFrame()
	f.candidates = []adminapi.Candidate{{
		Rule: "edge/user", Candidate: "60/1m burst=20", Counts: candidates.Counts{Requests: 1000, Denied: 3, WouldDeny: 8, NewlyDenied: 7, NewlyAllowed: 2},
	}}
	const want = "candidate 60/1m burst=20 of edge/user: 1,000 requests, 3 denied, 8 would be: 7 newly, 2 no longer"
	if got := strings.Join(f.lines(), "\n"); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant %s", got, want)
	}
}
