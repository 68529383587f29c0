package adminapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
)

// Whatever overrides a key has had, traffic and operators find the units that it has used,
// and a reset leaves none of them, with one daemon or two that share a store. The clock stands
// still, so no unit returns by itself.
func TestOverridesRefundsAndResetsMatchModel(t *testing.T) {
	onEachStore(t, func(t *testing.T, e *engine.Engine) {
		log, err := audit.New(audit.Options{Out: io.Discard, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		m := &keyModel{t: t, log: log, rng: rand.New(rand.NewPCG(fixedseed.Seed(), 11))}
		for _, e := range []*engine.Engine{e, newEngineWithStore(t, e.Store(), nil)} {
			setModelRules(t, e)
			m.engines = append(m.engines, e)
			m.servers = append(m.servers, newServer(t, e, adminapi.Options{Loopback: true, Audit: log}))
		}
		for i := range modelCases {
			m.begin(i)
			for range 30 {
				m.step()
			}
		}
		for what, n := range m.seen {
			if n < modelCases/4 {
				t.Errorf("%s: seen %d times, want many", what, n)
			}
		}
	})
}

var modelCases = fixedseed.FewerUnderRace(100)

func setModelRules(t *testing.T, e *engine.Engine) {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "model.yaml", Text: []byte(modelRules)})
	if err != nil {
		t.Fatal(err)
	}
	e.SetRules(set)
}

const modelRules = `
domain: m
descriptors:
  - {key: window, limit: 10/1h fixed-window}
  - {key: log, limit: 8/1h sliding-log}
  - {key: bucket, limit: 60/1m}
`

var (
	modelRuleNames = []string{"window", "log", "bucket"}
	modelOwn       = map[string]modelLimit{
		"window": {"10/1h fixed-window", 10, "window 1h"},
		"log":    {"8/1h sliding-log", 8, "log 1h"},
		"bucket": {"60/1m", 60, "bucket 1/s"},
	}
	modelOthers = []modelLimit{
		{"20/1h fixed-window", 20, "window 1h"},
		{"5/1h fixed-window", 5, "window 1h"},
		{"30/2h fixed-window", 30, "window 2h"},
		{"12/1h sliding-log", 12, "log 1h"},
		{"6/2h sliding-log", 6, "log 2h"},
		{"15/1h sliding-window", 15, "counter 1h"},
		{"60/1m burst=100", 100, "bucket 1/s"},
		{"600/1m burst=50", 50, "bucket 10/s"},
		{"7/1m", 7, "bucket 7/m"},
		{"unlimited", 0, ""},
		{"ban", 0, ""},
	}
)

// A modelLimit is a limit with its capacity. Limits of the same place count the units of a key
// together.
type modelLimit struct {
	text  string
	count int64
	place string
}

// A keyModel knows what a key has used in each place, and compares it with what the daemon
// says.
type keyModel struct {
	t       *testing.T
	engines []*engine.Engine // of each daemon
	servers []*adminapi.Server
	log     *audit.Log
	rng     *rand.Rand
	seen    map[string]int
	daemon  int // that does the step
	daemons int // in this case

	rule, value string
	override    *modelLimit // nil for none
	used        map[string]int64
	changes     int // of the override since the last request
	history     []string
}

func (m *keyModel) begin(i int) {
	m.rule, m.value = modelRuleNames[i%len(modelRuleNames)], fmt.Sprint("v", i)
	m.override, m.used, m.changes, m.history = nil, map[string]int64{}, 0, nil
	m.daemons = 1 + m.rng.IntN(len(m.servers))
	if m.seen == nil {
		m.seen = map[string]int{}
	}
}

func (m *keyModel) step() {
	n := 1 + m.rng.Int64N(9)
	m.daemon = m.rng.IntN(m.daemons)
	switch m.rng.IntN(10) {
	case 0, 1, 2, 3:
		m.take(n)
	case 4:
		m.refundByTraffic(n)
	case 5, 6:
		m.changeOverride()
	case 7:
		m.act("POST", n)
	case 8:
		if m.rng.IntN(2) == 0 {
			m.act("DELETE", 0)
		}
	default:
		m.peek()
	}
}

// limit returns the limit that counts, and whether requests get to it. Units of other places
// are carried to it, unless the key is banned or exempt.
func (m *keyModel) limit() (l modelLimit, counts bool) {
	l = modelOwn[m.rule]
	switch {
	case m.override == nil:
	case m.override.place == "":
		return l, false
	default:
		l = *m.override
	}
	m.changes = 0
	for place, units := range m.used {
		if place != l.place {
			m.used[l.place] += min(units, max(l.count-m.used[l.place], 0))
			delete(m.used, place)
		}
	}
	return l, true
}

// refund returns units of the key, and how many they were.
func (m *keyModel) refund(l modelLimit, n int64) int64 {
	units := min(n, m.used[l.place])
	m.used[l.place] -= units
	return units
}

func (m *keyModel) remaining(l modelLimit) int64 { return max(l.count-m.used[l.place], 0) }

func (m *keyModel) note(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf("daemon %d: ", m.daemon)+fmt.Sprintf(format, args...))
}

func (m *keyModel) check(what string, got, want any) {
	m.t.Helper()
	m.seen[what]++
	if got != want {
		m.t.Fatalf("rule %s, %s: got %v, want %v, after\n%s", m.rule, what, got, want, strings.Join(m.history, "\n"))
	}
}

func (m *keyModel) decide(cost int64) engine.Status {
	m.t.Helper()
	var result engine.Result
	ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: m.rule, Value: m.value}}, Cost: cost}}
	if err := m.engines[m.daemon].Decide(m.t.Context(), "m", ds, &result); err != nil {
		m.t.Fatal(err)
	}
	return result.Statuses[0]
}

func (m *keyModel) take(n int64) {
	m.t.Helper()
	m.note("take %d", n)
	l, counts := m.limit()
	s := m.decide(n)
	if !counts {
		m.check("whether "+m.override.text+" denies", s.OverLimit, m.override.text == "ban")
		return
	}
	allowed := n <= m.remaining(l)
	if allowed {
		m.used[l.place] += n
	}
	m.check("whether a take is denied", s.OverLimit, !allowed)
	m.check("units left after a take", s.Decision.Remaining, m.remaining(l))
}

// refundByTraffic refunds as the APIs do that carry traffic.
func (m *keyModel) refundByTraffic(n int64) {
	if _, counts := m.limit(); !counts {
		return // the limit that it would be refunded to is not defined
	}
	m.note("refund %d", n)
	l, _ := m.limit()
	m.refund(l, n)
	m.check("units left after a refund", m.decide(-n).Decision.Remaining, m.remaining(l))
}

func (m *keyModel) changeOverride() {
	const remembered = 4 // so many limits without a request between them
	if m.changes == remembered {
		return
	}
	m.changes++
	if m.override != nil && m.rng.IntN(3) == 0 {
		m.note("delete the override")
		m.override = nil
		for m.daemon = range m.daemons { // as if Redis had told the others
			m.ok("DELETE", overridesURL+"?rule=m/"+m.rule+"&key="+m.value+"&reason=x")
		}
		return
	}
	m.override = &modelOthers[m.rng.IntN(len(modelOthers))]
	m.note("override: %s", m.override.text)
	body, _ := json.Marshal(map[string]string{"rule": "m/" + m.rule, "key": m.value, "limit": m.override.text, "reason": "x"})
	for _, s := range m.servers[:m.daemons] {
		if w := putJSON(s, string(body)); w.Code != 200 {
			m.t.Fatalf("%s: got %d %s", body, w.Code, w.Body)
		}
	}
}

// modelState is a response of /v1/keys.
type modelState struct {
	WouldAllow bool `json:"would_allow"`
	Decision   modelDecision
}

type modelDecision struct{ Remaining, Limit int64 }

func (m *keyModel) ok(method, path string) (state modelState) {
	m.t.Helper()
	w := send(m.servers[m.daemon], method, path)
	if err := json.Unmarshal(w.Body.Bytes(), &state); w.Code != 200 || err != nil {
		m.t.Fatalf("%s %s: got %d %s, after\n%s", method, path, w.Code, w.Body, strings.Join(m.history, "\n"))
	}
	return state
}

func (m *keyModel) path() string {
	return "/v1/keys?rule=m/" + m.rule + "&key=" + url.QueryEscape(m.rule+"="+m.value)
}

func (m *keyModel) peek() {
	m.note("peek")
	l, counts := m.limit()
	state := m.ok("GET", m.path())
	allows := m.remaining(l) > 0
	if !counts {
		allows = m.override.text == "unlimited"
	}
	m.check("units that an operator sees", state.Decision.Remaining, m.remaining(l))
	m.check("whether an operator sees a key allowed", state.WouldAllow, allows)
}

// act refunds units of the key, or resets it, as an operator.
func (m *keyModel) act(method string, n int64) {
	m.t.Helper()
	m.note("%s %d as an operator", method, n)
	l, _ := m.limit()
	path := m.path() + "&reason=x"
	var units int64
	if method == "POST" {
		path += fmt.Sprint("&units=", n)
		units = m.refund(l, n)
	} else {
		units = m.refund(l, l.count)
		clear(m.used)
	}
	state := m.ok(method, path)
	m.check("units that are left after "+method, state.Decision.Remaining, m.remaining(l))
	m.check("units on record of "+method, m.log.Recent()[0].Units, units)
}
