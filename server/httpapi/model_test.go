package httpapi_test

import (
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
)

// Whatever callers send, the API answers as the model does. Where the store fails, an error
// leaves behind what the documents say: nothing, except for what was taken by a call whose
// response was lost, what could not be refunded, and what an ID lets the caller repeat.
func TestAPIMatchesModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 9))
	total := map[int]int{}
	for i := range modelCases {
		seed := rng.Uint64()
		synctest.Test(t, func(t *testing.T) {
			m := newModelCase(t, rand.New(rand.NewPCG(seed, 0)), i%3 == 0)
			m.name = fmt.Sprintf("case %d", i)
			m.store.failing = i%2 == 1
			for range 40 {
				m.step()
			}
			for status, n := range m.statuses {
				total[status] += n
			}
		})
	}
	for _, status := range []int{200, 400, 403, 404, 429, 503} {
		if total[status] < modelCases/4 {
			t.Errorf("%d responses have the status %d, want many; all: %v", total[status], status, total)
		}
	}
}

var modelCases = fixedseed.FewerUnderRace(200)

// modelLimits are the limits of keys whose requests carry their limit.
var modelLimits = map[string]string{
	"window":  "4/40ms fixed-window",
	"short":   "3/20ms fixed-window debt=2",
	"nodebt":  "5/30ms fixed-window debt=0",
	"permits": "3/30ms concurrent",
}

func newWorld() world {
	w := world{}
	add := func(key string, c cell) {
		c.ids, c.permits = map[string]chargedID{}, map[string]heldPermit{}
		w[key] = &c
	}
	add("window", cell{count: 4, period: 40, debt: 4})
	add("short", cell{count: 3, period: 20, debt: 2})
	add("nodebt", cell{count: 5, period: 30})
	add("permits", cell{count: 3, period: 30, concurrent: true})
	add("hard=x", cell{count: 4, period: 40, debt: 4})
	add("plain=x", cell{count: 3, period: 30, debt: 3})
	add("quota=x", cell{count: 3, period: 40, debt: 3})
	add("other=x", cell{count: 2, period: 20, debt: 2})
	add("shadow=x", cell{count: 2, period: 40, debt: 2})
	add("gate=x", cell{count: 3, period: 30, debt: 1 << 40})
	add("slot=x", cell{count: 2, period: 30, concurrent: true})
	return w
}

// A modelCase is one run of the API beside the model.
type modelCase struct {
	*testing.T
	name   string
	cached bool // the engine remembers denials
	rng    *rand.Rand
	store  *lossyStore
	server *httpapi.Server
	start  time.Time
	worlds []world // all that fit the responses so far

	limitKeys, windows []string // the keys with limits, and those that hold no permits
	ruleKeys           []string
	settled            string // the key of a rule with settle
	ids                []string

	statuses map[int]int
	log      []exchanged
}

// An exchanged is a call and its response.
type exchanged struct {
	at     int64
	call   *modelCall
	faults []storeFault
	code   int
	body   string
}

func (e exchanged) String() string {
	text := bodyOf(e.call)
	if e.call.auth {
		text = "GET " + queryOf(e.call)
	} else if e.call.settle {
		text = "settle " + text
	}
	if len(e.faults) > 0 {
		text += fmt.Sprintf(" with the faults %+v", e.faults)
	}
	return fmt.Sprintf("%d ms, token %v: %s\n  %d %s", e.at, e.call.token, text, e.code, e.body)
}

func newModelCase(t *testing.T, rng *rand.Rand, cached bool) *modelCase {
	store := &lossyStore{Memory: penstock.NewMemory(nil), rng: rng}
	set, err := rules.Parse(rules.File{Name: "model.yaml", Text: []byte(modelRules)})
	if err != nil {
		t.Fatal(err)
	}
	o := &engine.Options{Token: "secret"}
	if cached {
		o.OverLimitKeys, o.OverLimitAge, o.CacheDenials = 1024, time.Hour, true
	}
	e := engine.New(store, o)
	e.SetRules(set)
	m := &modelCase{T: t, cached: cached, rng: rng, store: store, server: newServer(t, e, nil), start: time.Now(), worlds: []world{newWorld()}, statuses: map[int]int{}}
	m.drawScope()
	return m
}

func (m *modelCase) now() int64 { return time.Since(m.start).Milliseconds() }

// step sends one request.
func (m *modelCase) step() {
	time.Sleep(time.Duration(max(m.rng.IntN(24)-8, 0)) * time.Millisecond)
	m.send(m.drawCall())
	if len(m.store.faults) == 0 {
		return
	}
	failing := m.store.failing
	m.store.failing, m.store.faults = false, nil
	for _, c := range peeks {
		m.send(c)
	}
	m.store.failing = failing
}

// peeks look at all keys.
var peeks = []*modelCall{
	{mode: each, parts: []modelPart{peekAt("window"), peekAt("short"), peekAt("nodebt"), peekAt("permits")}},
	{mode: each, parts: []modelPart{
		{byRules: true, asks: []ask{{key: "hard=x"}, {key: "plain=x"}, {key: "quota=x"}, {key: "other=x"}, {key: "shadow=x"}, {key: "slot=x"}}},
		{byRules: true, asks: []ask{{key: "gate=x"}}},
	}},
}

func peekAt(key string) modelPart { return modelPart{asks: []ask{{key: key}}} }

// send sends a call, and drops all worlds in which it would have another response.
func (m *modelCase) send(c *modelCall) {
	w := httptest.NewRecorder()
	r := m.request(c)
	m.server.ServeHTTP(w, r)
	m.statuses[w.Code]++
	m.log = append(m.log, exchanged{m.now(), c, m.store.faults, w.Code, w.Body.String()})
	var next []world
	var differences []string
	for _, before := range m.worlds {
		after, want := m.outcomes(before, c, w.Code)
		if text := want.compare(c, w, m.cached); text != "" {
			differences = append(differences, text)
		} else {
			next = append(next, after...)
		}
	}
	if len(next) == 0 {
		m.Fatalf("%s: %v\nno state fits the last response: %s\nthe states before:\n%v", m.name, m.log, strings.Join(differences, "; "), m.worlds)
	}
	m.worlds = distinct(next)
}

// distinct returns each of the worlds once.
func distinct(worlds []world) []world {
	if len(worlds) == 1 {
		return worlds
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(worlds, func(w world) bool {
		text := w.String()
		known := seen[text]
		seen[text] = true
		return known
	})
}
