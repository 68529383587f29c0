package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// A ruleBench measures what many rules cost: how long rules, and exact values under one parent, take to
// load, what a match among them costs, and how long requests take while the rules are reloaded.
type ruleBench struct {
	*harness.Run
	rules, values int
	load          time.Duration // of requests, without reloads and with them
}

func newRuleBench(r *harness.Run) *ruleBench {
	return &ruleBench{r, r.Size(10_000, 100), r.Size(100_000, 1000), harness.Scale(r, 10*time.Second, 100*time.Millisecond)}
}

// loadAndMatch measures how long the rules take to load, and what a match costs.
func (b *ruleBench) loadAndMatch() {
	began := time.Now()
	set := harness.Must(b.parse())
	loaded := time.Since(began)
	b.Find(fmt.Sprintf("load %d rules and %d values", b.rules, b.values), "≤ 2 s", loaded <= 2*time.Second, "%.2f s", loaded.Seconds())
	for _, d := range b.descriptors() {
		nanos := harness.Must(matchNanos(set, d))
		b.Find("match "+strings.ReplaceAll(string(rules.AppendKey(nil, d)), "|", " and "), "≤ 300 ns", nanos <= 300, "%.0f ns", nanos)
	}
}

// domain is that of all rules.
const domain = "api"

// parse returns the rules, in two files: for the users of each route, and exact values under one parent.
func (b *ruleBench) parse() (*rules.Set, error) {
	var routes, tenants strings.Builder
	routes.WriteString("domain: " + domain + "\ndescriptors:\n")
	for i := range b.rules {
		fmt.Fprintf(&routes, "- {key: route, value: /r%d, descriptors: [{key: user, limit: 1000000000/1s}]}\n", i)
	}
	tenants.WriteString("domain: tenants\ndescriptors:\n- key: plan\n  value: paid\n  descriptors:\n")
	for i := range b.values {
		fmt.Fprintf(&tenants, "  - {key: tenant, value: t%d, limit: 1000000000/1s}\n", i)
	}
	return rules.Parse(rules.File{Name: "routes.yaml", Text: []byte(routes.String())}, rules.File{Name: "tenants.yaml", Text: []byte(tenants.String())})
}

// descriptors returns one for a route, and one for a value.
func (b *ruleBench) descriptors() [][]rules.Entry {
	return [][]rules.Entry{
		{{Key: "route", Value: fmt.Sprintf("/r%d", b.rules/2)}, {Key: "user", Value: "ada"}},
		{{Key: "plan", Value: "paid"}, {Key: "tenant", Value: fmt.Sprintf("t%d", b.values/2)}},
	}
}

// matchNanos returns what a match costs.
func matchNanos(set *rules.Set, entries []rules.Entry) (nanos float64, err error) {
	buf := make([]byte, 0, 256)
	var matched *rules.Rule
	for _, d := range set.Domains() {
		if matched, _ = d.Match(entries, buf); matched == nil {
			continue
		}
		r := testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
				d.Match(entries, buf)
			}
		})
		return float64(r.T.Nanoseconds()) / float64(r.N), nil
	}
	return 0, errors.New("no rule matches")
}

// reloadUnderLoad measures how long requests take without reloads, and during them.
func (b *ruleBench) reloadUnderLoad() {
	e := engine.New(penstock.NewMemory(nil), nil)
	e.SetRules(harness.Must(b.parse()))
	quiet := harness.Must(b.request(e))
	reloads := 0
	stop := harness.Background(func(stopped func() bool) error {
		for reloads == 0 || !stopped() {
			set, err := b.parse()
			if err != nil {
				return err
			}
			e.SetRules(set)
			reloads++
		}
		return nil
	})
	busy, err := b.request(e)
	harness.Check(errors.Join(err, stop()))
	b.Find("median request", "", true, "%v", harness.Quantile(quiet, 0.5))
	b.Find(fmt.Sprintf("slowest of %d requests", len(quiet)), "", true, "%v", harness.Quantile(quiet, 1))
	b.Find(fmt.Sprintf("median request, during %d reloads", reloads), "", true, "%v", harness.Quantile(busy, 0.5))
	b.Find("99.9 % of requests, during reloads", "", true, "%v", harness.Quantile(busy, 0.999))
	slowest := harness.Quantile(busy, 1)
	b.Find(fmt.Sprintf("slowest of %d requests, during reloads", len(busy)), "≤ 5 ms", slowest <= 5*time.Millisecond, "%v", slowest)
}

// pause is between two requests, so that the caller does not fill a processor.
const pause = 100 * time.Microsecond

// request makes requests, at least one, and returns how long each of them took.
func (b *ruleBench) request(e *engine.Engine) (times []time.Duration, err error) {
	var r engine.Result
	ds := []engine.Descriptor{{Entries: b.descriptors()[0], Cost: 1}}
	for end := time.Now().Add(b.load); len(times) == 0 || time.Now().Before(end); time.Sleep(pause) {
		began := time.Now()
		if err := e.Decide(context.Background(), domain, ds, &r); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
		if r.OverLimit || r.Statuses[0].Rule == nil {
			return nil, fmt.Errorf("a request was denied, or matched no rule: %+v", r)
		}
	}
	return times, nil
}
