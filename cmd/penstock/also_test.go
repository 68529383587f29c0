package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
)

// Rules with two limits, of which the second is the tighter one. Both last longer than any test.
const alsoRules = `
domain: sms
descriptors:
  - key: phone
    limit: "60/30d fixed-window"
    also: "5/60d fixed-window"
    settle: true
    descriptors:
      - {key: priority, value: batch, keep_free: 40%}
  - key: tie
    limit: "5/30d fixed-window"
    also: "5/60d fixed-window"
`

// An alsoTest is a spent key of a rule with two limits, asked of one daemon and changed at another.
type alsoTest struct {
	*testing.T
	taking, asked *server.Server
	key           string
}

// take takes one unit, and reports whether it was granted.
func (a *alsoTest) take() bool {
	status, _ := call(a.T, a.taking, "http", "POST", "/v1/take", fmt.Sprintf(`{"domain": "sms", "descriptors": [{"entries": [{"key": "phone", "value": %q}]}]}`, a.key))
	return status == 200
}

// awaitTakes waits until units are granted or denied, which another daemon knows a moment later.
func (a *alsoTest) awaitTakes(granted bool) {
	a.Helper()
	redistest.WaitFor(a.T, fmt.Sprintf("a take is granted=%t", granted), func() bool { return a.take() == granted })
}

// run runs a command, in which KEY is the key, and checks the exit code and what it prints.
func (a *alsoTest) run(command string, code int, want ...string) {
	a.Helper()
	words := strings.Fields(strings.ReplaceAll(command, "KEY", a.key))
	got, text := runCommand(a.asked, words...)
	a.check(command, got == code, text, want)
}

// call sends a request to the admin API, and checks the response.
func (a *alsoTest) call(route string, want ...string) {
	a.Helper()
	method, path, _ := strings.Cut(strings.ReplaceAll(route, "KEY", a.key), " ")
	path, body, _ := strings.Cut(path, " ")
	status, text := call(a.T, a.asked, "admin", method, path, body)
	a.check(route, status == 200, text, want)
}

func (a *alsoTest) check(what string, ok bool, text string, want []string) {
	a.Helper()
	for _, pattern := range want {
		ok = ok && regexp.MustCompile("(?m)"+pattern).MatchString(text)
	}
	if !ok {
		a.Errorf("%s: got\n%s\nwant %q", what, text, want)
	}
}

const (
	tightestLine = `^rule +sms/phone//60d$`
	deniedLine   = `^one unit +denied, passes in `
	besideLine   = `^also +sms/phone, 60/30d fixed-window: .*55 of 60 left, one unit would pass$`
	deniedJSON   = `"would_allow": false,\n *"retry_after": \d`
	bothJSON     = `"of": "sms/phone",\n *"also": \[\n *\{\n *"rule": "sms/phone",`
)

// alsoTests are what commands and paths do with a spent key of a rule with two limits, by command or path. "" is what
// takes no key.
var alsoTests = map[string]func(a *alsoTest){
	"peek": func(a *alsoTest) {
		for _, key := range []string{"--domain sms phone=KEY", "--rule sms/phone KEY", "--rule sms/phone --key phone=KEY"} {
			a.run("peek "+key, 1, tightestLine, `^remaining +0 of 5$`, deniedLine, besideLine)
		}
		a.run("peek --rule sms/phone//60d KEY", 1, tightestLine, deniedLine, `one unit .*\nfull .*\n\z`)
		a.run("peek --domain sms phone=idle", 0, tightestLine, `^one unit +would pass`, `60 of 60 left`)
	},
	"refund": func(a *alsoTest) {
		a.run("refund --domain sms phone=KEY --units 2 --reason test", 0, `^refunded +2$`, tightestLine, `also .*: refunded 2, 57 of 60 left`)
		a.run("peek --domain sms phone=KEY priority=batch", 1, `^rule +sms/phone/priority=batch//60d`, `^remaining +2 of 5`, deniedLine) // two are kept free
		a.awaitTakes(true)
		a.awaitTakes(true)
		a.awaitTakes(false)
	},
	"reset": func(a *alsoTest) {
		a.run("override set sms/phone KEY ban --reason test", 0)
		a.run("reset --rule sms/phone KEY --reason test", 1, `^refunded +5$`, `^rule +sms/phone$`, `^one unit +denied, always`, `override delete sms/phone`, `also +sms/phone//60d, .*: refunded 5, 5 of 5 left`)
		a.run("override delete sms/phone phone=KEY --reason test", 0)
		for range 5 {
			a.awaitTakes(true)
		}
		a.awaitTakes(false)
	},
	"take": func(a *alsoTest) { a.awaitTakes(false) },
	"settle": func(a *alsoTest) {
		a.run("reset --domain sms phone=KEY --reason test", 0)
		a.run("take --domain sms phone=KEY --cost 5 --id x", 0, "remaining=0/5")
		a.run("settle --domain sms phone=KEY --cost 1 --id x", 0, "remaining=4/5")
		a.run("peek --domain sms phone=KEY", 0, `4 of 5`, `59 of 60`)
	},
	"override set": func(a *alsoTest) {
		a.run("override set sms/phone KEY 100/30d --reason test", 0, `also sms/phone//60d, which is unchanged: 5/60d fixed-window`)
		a.awaitTakes(false)
		a.run("peek --domain sms phone=KEY", 1, tightestLine, `also +sms/phone, .*; override 100/30d`)
		a.run("override set --rule sms/phone//60d KEY 100/60d --reason test", 0)
		a.awaitTakes(true)
		a.run("override set --domain sms phone=KEY unlimited --reason test", 0, `^set: 1 override$`)
		a.run("peek --domain sms phone=KEY", 0, `^rule +sms/phone$`, `^one unit +would pass`)
	},
	"override delete": func(a *alsoTest) {
		a.run("override set sms/phone KEY unlimited --reason test", 0)
		a.awaitTakes(true)
		a.run("override delete --domain sms phone=KEY --reason test", 0, "deleted: 1 override")
		a.awaitTakes(false)
	},
	"override list": func(a *alsoTest) {
		a.run("override set sms/phone//60d KEY ban --reason test", 0)
		a.run("override list --rule sms/phone//60d --key KEY", 0, `sms/phone//60d +phone=`)
		a.run("peek --domain sms phone=KEY", 1, tightestLine, `^one unit +denied, always`, `override delete sms/phone//60d`)
	},
	"override import": func(a *alsoTest) {
		file := filepath.Join(a.TempDir(), "overrides.csv")
		text := "rule,key,limit\nsms/phone,other,ban\nsms/phone," + a.key + ",100/30d\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			a.Fatal(err)
		}
		a.run("override import "+file+" --reason test", 0, `set: 2 overrides`, `override 2, of sms/phone, and perhaps others: .*also sms/phone//60d, which is unchanged`)
	},

	"/v1/keys": func(a *alsoTest) {
		for _, key := range []string{"domain=sms&phone=KEY", "domain=sms&key=phone%3DKEY", "rule=sms/phone&key=KEY"} {
			a.call("GET /v1/keys?"+key, `"rule": "sms/phone//60d"`, deniedJSON, bothJSON)
		}
		a.call("POST /v1/keys?domain=sms&phone=KEY&reason=test", `"would_allow": true`, bothJSON, `"remaining": 56`)
		a.call("DELETE /v1/keys?domain=sms&phone=KEY&reason=test", `"remaining": 5,`, bothJSON, `"remaining": 60,`)
	},
	"/v1/inspect": func(a *alsoTest) {
		for _, key := range []string{"key=KEY", "domain=sms&phone=KEY", "rule=sms/phone&key=KEY"} {
			a.call("GET /v1/inspect?"+key, `"rule": "sms/phone//60d"`, deniedJSON, bothJSON)
		}
		if _, text := call(a.T, a.asked, "admin", "GET", "/v1/inspect?key="+url.QueryEscape("phone="+a.key), ""); strings.Count(text, `"of":`) != 1 {
			a.Errorf("got %s, want one state with both limits", text)
		}
	},
	"/v1/explain": func(a *alsoTest) { a.call("GET /v1/explain?domain=sms&phone=KEY", `also`, `5/60d`) },
	"/v1/overrides": func(a *alsoTest) {
		a.call(`PUT /v1/overrides {"rule":"sms/phone","key":"KEY","limit":"100/30d","reason":"test"}`, `also sms/phone//60d, which is unchanged`)
	},
}

// noKey are the commands and paths without a key.
var noKey = map[string]bool{
	"/": true, "/healthz": true, "/readyz": true, "/metrics": true, "/rules": true, "/rlconfig": true, "/v1/live": true, "/v1/top": true,
	"/v1/permits": true, "/v1/candidates": true, "/v1/audit": true, "/v1/simulate": true, "/v1/simulate/log": true, "/openapi.yaml": true,
	"override export": true, "rules explain": true, // of files
}

// Every command and every path of the admin API that takes a key means all limits of its rule.
func TestEachCommandKnowsFurtherLimits(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		d := serveInProcess(t, "memory:", alsoRules)
		runAlsoTests(t, d, d)
	})
	t.Run("redis", func(t *testing.T) {
		redis := redistest.StartForTest(t, redistest.Options{})
		runAlsoTests(t, serveInProcess(t, "redis://"+redis.Addr, alsoRules), serveInProcess(t, "redis://"+redis.Addr, alsoRules))
	})
}

func runAlsoTests(t *testing.T, taking, asked *server.Server) {
	n := 0
	for _, name := range keyedNames(t, asked) {
		test := alsoTests[name]
		if test == nil {
			t.Errorf("%s takes a key: say in alsoTests what it does with a rule that has two limits", name)
			continue
		}
		t.Run(strings.TrimPrefix(name, "/"), func(t *testing.T) {
			n++
			a := &alsoTest{t, taking, asked, fmt.Sprintf("key%d", n)}
			for range 5 {
				a.awaitTakes(true)
			}
			a.awaitTakes(false)
			test(a)
		})
	}
}

// keyedNames returns the commands whose arguments or flags name a key, and the paths of the admin listener.
func keyedNames(t *testing.T, d *server.Server) (names []string) {
	t.Helper()
	for c := range allCommands(rootCommand()) {
		name := strings.TrimPrefix(c.CommandPath(), "penstock ")
		if strings.Contains(c.Use, "KEY") || c.Flags().Lookup("key") != nil || name == "override import" {
			names = append(names, name)
		}
	}
	_, index := call(t, d, "admin", "GET", "/", "")
	for _, m := range regexp.MustCompile(`(?m)^/\S*`).FindAllString(index, -1) {
		names = append(names, m)
	}
	if len(names) < 20 {
		t.Fatalf("only %q: the search is broken", names)
	}
	kept := names[:0]
	for _, name := range names {
		if !noKey[name] {
			kept = append(kept, name)
		}
	}
	return kept
}

// Of two limits that have as little left, the answer tells the one that lasts longer.
func TestTieOfLimitsTellsTheLongerOne(t *testing.T) {
	d := serveInProcess(t, "memory:", alsoRules)
	const month = 30 * 24 * 3600
	for n := range 5 {
		_, text := call(t, d, "http", "POST", "/v1/take", `{"domain": "sms", "descriptors": [{"entries": [{"key": "tie", "value": "1"}]}]}`)
		var reset float64
		if m := regexp.MustCompile(`"reset_after": ?([0-9.]+)`).FindStringSubmatch(text); m != nil {
			_, _ = fmt.Sscan(m[1], &reset)
		}
		if reset <= month {
			t.Errorf("take %d: %s, want the time until the limit of 60 days is whole", n+1, text)
		}
	}
	if code, text := runCommand(d, "peek", "--domain", "sms", "tie=1"); code != exitNegative || !strings.Contains(text, "sms/tie//60d") {
		t.Errorf("%d %s, want a denial by the limit of 60 days", code, text)
	}
}
