package main

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// send sends a request to a listener of the daemon that takes, and checks the response.
func (a *alsoTest) send(listener, path, body string, status int, want ...string) {
	a.Helper()
	method := map[bool]string{true: "GET", false: "POST"}[body == ""]
	got, text := call(a.T, a.taking, listener, method, strings.ReplaceAll(path, "KEY", a.key), strings.ReplaceAll(body, "KEY", a.key))
	a.check(path, got == status, fmt.Sprint(got, text), want)
}

// runOnFile runs a command that asks no daemon, in which RULES is the file of rules.
func (a *alsoTest) runOnFile(command string, code int, want ...string) {
	a.Helper()
	file := filepath.Join(a.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(alsoRules), 0o600); err != nil {
		a.Fatal(err)
	}
	got, text := runAlone(strings.Fields(strings.NewReplacer("RULES", file, "KEY", a.key).Replace(command))...)
	a.check(command, got == code, text, want)
}

// runAlone runs a command and returns its exit code and all that it prints.
func runAlone(words ...string) (int, string) {
	var out strings.Builder
	code := run(words, &out, &out)
	return code, out.String()
}

func (a *alsoTest) check(what string, ok bool, text string, want []string) {
	a.Helper()
	for _, pattern := range want {
		ok = ok && regexp.MustCompile("(?m)"+strings.ReplaceAll(pattern, "KEY", a.key)).MatchString(text)
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
	ownJSON      = `"of": "sms/phone",\n *"also": \[\n *\{\n *"rule": "sms/phone//60d",` // its own limit is the tightest
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
		a.run("override set sms/phone KEY ban --reason test", 0)
		a.call("GET /v1/keys?rule=sms/phone&key=KEY", `"rule": "sms/phone",`, ownJSON)
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
	"/v1/live": func(a *alsoTest) {
		a.call("GET /v1/live?rules=50", `"name":"sms/phone",`, `"name":"sms/phone//60d",`)
	},
	"/v1/top": func(a *alsoTest) {
		a.asked = a.taking
		a.call("GET /v1/top?by=denied&rule=sms/phone//60d&n=100", `"rule":"sms/phone//60d","key":"phone=KEY"`)
	},
	"/rules": func(a *alsoTest) {
		a.call("GET /rules", `"name": "sms/phone//60d"`, `"name": "also",\n *"text": "5/60d fixed-window"`)
		if _, text := call(a.T, a.asked, "admin", "GET", "/rules", ""); strings.Count(text, `"name": "also"`) != 3 { // of phone, of batch and of tie
			a.Errorf("%s: want the further limits once, with the first limit of their rule", text)
		}
	},
	"/rlconfig": func(a *alsoTest) {
		a.call("GET /rlconfig", `sms.phone: unit=.* requests_per_unit=60,`, `sms.phone: limit="5/60d fixed-window",`)
	},
	"/metrics": func(a *alsoTest) {
		a.asked = a.taking
		a.call("GET /metrics", `^penstock_decisions_total{.*outcome="allowed".*rule="sms/phone"} [1-9]`, `^penstock_decisions_total{.*outcome="denied".*rule="sms/phone//60d"} [1-9]`)
	},
	"/v1/audit": func(a *alsoTest) {
		a.run("reset --domain sms phone=KEY --reason test", 0)
		a.call("GET /v1/audit", `(?s)"rule": "sms/phone//60d",[^}]*"key": "phone=KEY".*"rule": "sms/phone",[^}]*"key": "phone=KEY"`)
	},
	"/v1/candidates": func(a *alsoTest) {
		a.asked = a.taking // only it counts
		a.call("PUT /v1/candidates?rule=sms/phone&limit=2/30d&reason=test", `"limit": "60/30d fixed-window, 5/60d fixed-window"`)
		a.take() // what another limit of the rule denies says nothing about the candidate
		a.call("GET /v1/candidates?rule=sms/phone", `"requests": 0,`)
		a.run("reset --domain sms phone=KEY --reason test", 0)
		a.awaitTakes(true)
		a.call("GET /v1/candidates?rule=sms/phone", `"requests": 1,\n *"denied": 0,`)
		a.call("DELETE /v1/candidates?rule=sms/phone&reason=test")
	},
	"override export": func(a *alsoTest) {
		a.run("override set sms/phone//60d KEY 7/60d --reason test", 0)
		a.run("override export", 0, `"rule": "sms/phone//60d",\n *"key": "phone=KEY"`)
	},
	"top": func(a *alsoTest) {
		a.asked = a.taking
		a.run("top --once --view keys --by denied --rule sms/phone//60d", 0, `phone=KEY`)
		a.run("top --once --filter phone//60d", 0, `sms/phone//60d`)
	},
	"rules check": func(a *alsoTest) { a.runOnFile("rules check RULES", 0, `rules`) },
	"rules explain": func(a *alsoTest) {
		a.runOnFile("rules explain RULES sms phone=KEY", 0, `^rule +sms/phone$`, `^also +5/60d fixed-window$`)
	},
	"replay": func(a *alsoTest) {
		log := filepath.Join(a.TempDir(), "access.log")
		line := `203.0.113.9 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 512 "-" "-"` + "\n"
		if err := os.WriteFile(log, []byte(strings.Repeat(line, 7)), 0o600); err != nil {
			a.Fatal(err)
		}
		a.runOnFile("replay "+log+" --rules RULES --entry phone=address:address --json", 0, `sms/phone//60d`)
	},

	"http /v1/take": func(a *alsoTest) {
		a.send("http", "/v1/take", `{"domain": "sms", "descriptors": [{"entries": [{"key": "phone", "value": "KEY"}]}]}`, 429, `"rule": ?"sms/phone//60d"`, `"limit": ?5,`)
	},
	"http /v1/settle": func(a *alsoTest) {
		a.run("reset --domain sms phone=KEY --reason test", 0)
		a.awaitTakes(true) // until the daemon that takes knows of the reset
		a.run("reset --domain sms phone=KEY --reason test", 0)
		const entries = `"domain": "sms", "id": "KEY", "descriptors": [{"entries": [{"key": "phone", "value": "KEY"}], "cost": `
		a.send("http", "/v1/take", "{"+entries+`5}]}`, 200)
		a.send("http", "/v1/settle", "{"+entries+`1}]}`, 200, `"rule": ?"sms/phone//60d"`, `"remaining": ?4,`)
		a.run("peek --domain sms phone=KEY", 0, `4 of 5`, `59 of 60`)
	},
	"http /v1/auth": func(a *alsoTest) { a.send("http", "/v1/auth?domain=sms&phone=KEY", "", 429) },
	"http /json": func(a *alsoTest) {
		a.send("http", "/json", `{"domain": "sms", "descriptors": [{"entries": [{"key": "phone", "value": "KEY"}]}]}`, 429, `"requestsPerUnit": ?5}`)
	},
	"resp penstock.take": func(a *alsoTest) {
		a.check("PENSTOCK.TAKE", true, respCall(a.T, a.taking, "PENSTOCK.TAKE DOMAIN sms phone "+a.key), []string{`sms/phone//60d`})
	},
	"resp penstock.settle": func(a *alsoTest) {
		a.run("refund --domain sms phone=KEY --units 5 --reason test", 0)
		a.awaitTakes(true)
		a.run("refund --domain sms phone=KEY --units 1 --reason test", 0)
		respCall(a.T, a.taking, "PENSTOCK.TAKE ID r"+a.key+" DOMAIN sms phone "+a.key+" COST 5")
		a.check("PENSTOCK.SETTLE", true, respCall(a.T, a.taking, "PENSTOCK.SETTLE ID r"+a.key+" DOMAIN sms phone "+a.key+" COST 1"), []string{`sms/phone//60d`})
		a.run("peek --domain sms phone=KEY", 0, `4 of 5`, `59 of 60`)
	},
	"grpc ShouldRateLimit": func(a *alsoTest) {
		code, text := runAlone("take", "--domain", "sms", "phone="+a.key, "--server", "grpc://"+a.taking.Addr("grpc").String())
		a.check("take by gRPC", code == exitNegative, text, []string{`remaining=0 limit=5/`})
	},

	"/v1/overrides": func(a *alsoTest) {
		a.call(`PUT /v1/overrides {"rule":"sms/phone","key":"KEY","limit":"100/30d","reason":"test"}`, `also sms/phone//60d, which is unchanged`)
	},
}

// withoutRule are the commands and paths that have nothing of rules or of keys under them.
var withoutRule = []string{
	"/", "/healthz", "/readyz", "/openapi.yaml", "http /healthcheck", "http /openapi.yaml",
	"/v1/permits",      // a rule with further limits holds none
	"/v1/simulate",     // of a limit in the request
	"/v1/simulate/log", // of limits in the request; a rule has only the entries that are counted by
	"bench", "completion", "doctor", "health", "rules import", "rules seal", "serve", "simulate", "version",
	"ratelimit",                                                                                                    // serves what serve does
	"resp cl.throttle", "resp get", "resp ttl", "resp pttl", "resp exists", "resp type", "resp del", "resp unlink", // of limits in requests
	"resp flushall", "resp flushdb", "resp ping", "resp echo", "resp hello", "resp auth", "resp select", "resp client", "resp reset", "resp quit",
	"resp command", "resp config", "resp info", "resp cluster", "resp readonly",
}

// Every command, and every path and command of all APIs but Envoy's quota service, which refuses such rules, knows all
// limits of a rule.
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
	names := allNames(t, asked)
	for name := range alsoTests {
		if !slices.Contains(names, name) {
			t.Errorf("there is no %s", name)
		}
	}
	for _, name := range names {
		test := alsoTests[name]
		switch {
		case slices.Contains(withoutRule, name):
			continue
		case test == nil:
			t.Errorf("%s: say in alsoTests what it does with a rule that has two limits", name)
			continue
		}
		t.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) {
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

// allNames returns the commands that can be run, the paths of the admin listener, and those, methods and commands of the
// other listeners after the listener's name.
func allNames(t *testing.T, d *server.Server) (names []string) {
	t.Helper()
	for c := range allCommands(rootCommand()) {
		if c.HasParent() && !c.HasSubCommands() {
			names = append(names, strings.TrimPrefix(c.CommandPath(), "penstock "))
		}
	}
	_, index := call(t, d, "admin", "GET", "/", "")
	_, spec := call(t, d, "http", "GET", "/openapi.yaml", "")
	names = append(names, regexp.MustCompile(`(?m)^/\S*`).FindAllString(index, -1)...)
	for _, m := range regexp.MustCompile(`(?m)^  (/\S*):$`).FindAllStringSubmatch(spec, -1) {
		names = append(names, "http "+m[1])
	}
	for _, m := range regexp.MustCompile(`\$\d+\r\n(\S+)\r\n`).FindAllStringSubmatch(respCall(t, d, "COMMAND LIST"), -1) {
		names = append(names, "resp "+m[1])
	}
	names = append(names, "grpc ShouldRateLimit")
	for _, name := range append(withoutRule, "peek") {
		if !slices.Contains(names, name) {
			t.Fatalf("no %q in %q: the search is broken, or the list", name, names)
		}
	}
	slices.Sort(names)
	return names
}

// respCall sends an inline command to the RESP listener and returns the replies, as they are.
func respCall(t *testing.T, d *server.Server, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", d.Addr("resp").String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.Write([]byte(command + "\r\nQUIT\r\n")); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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
