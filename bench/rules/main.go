// Command rules measures what many rules cost: how long 10,000 rules and 100,000 exact values
// under one parent take to load, what a match among them costs, and how long requests take
// while the rules are reloaded.
//
//	go run ./rules           # half a minute
//	go run ./rules -quick    # a few seconds, to see that it runs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// A size is how many rules are measured, and for how long.
type size struct {
	rules, values int
	load          time.Duration // of requests, without reloads and with them
}

var (
	full  = size{rules: 10_000, values: 100_000, load: 10 * time.Second}
	quick = size{rules: 100, values: 1000, load: 100 * time.Millisecond}
)

func main() {
	isQuick := flag.Bool("quick", false, "measure with a hundredth of the rules")
	flag.Parse()
	s := full
	if *isQuick {
		s = quick
	}
	if err := run(s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "rules:", err)
		os.Exit(1)
	}
}

// run prints the measurements of one size, and what they should be at most.
func run(s size, out io.Writer) error {
	began := time.Now()
	set, err := s.parse()
	if err != nil {
		return err
	}
	loaded := time.Since(began)
	e := engine.New(penstock.NewMemory(nil), nil)
	e.SetRules(set)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "what\tmeasured\tat most\t")
	fmt.Fprintf(table, "load %d rules and %d values\t%.2f s\t2 s\t\n", s.rules, s.values, loaded.Seconds())
	for _, d := range s.descriptors() {
		nanos, err := matchNanos(set, d)
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "match %s\t%.0f ns\t300 ns\t\n", rules.AppendKey(nil, d), nanos)
	}
	if err := s.measureReloads(e, table); err != nil {
		return err
	}
	return table.Flush()
}

// domain is that of all rules.
const domain = "api"

// parse returns the rules, in two files.
func (s size) parse() (*rules.Set, error) {
	return rules.Parse(
		rules.File{Name: "routes.yaml", Text: []byte(s.routes())},
		rules.File{Name: "tenants.yaml", Text: []byte(s.tenants())},
	)
}

// routes returns rules of one domain, each for the users of a route.
func (s size) routes() string {
	var b strings.Builder
	b.WriteString("domain: " + domain + "\ndescriptors:\n")
	for i := range s.rules {
		fmt.Fprintf(&b, "- {key: route, value: /r%d, descriptors: [{key: user, limit: 1000000000/1s}]}\n", i)
	}
	return b.String()
}

// tenants returns exact values under one parent.
func (s size) tenants() string {
	var b strings.Builder
	b.WriteString("domain: tenants\ndescriptors:\n- key: plan\n  value: paid\n  descriptors:\n")
	for i := range s.values {
		fmt.Fprintf(&b, "  - {key: tenant, value: t%d, limit: 1000000000/1s}\n", i)
	}
	return b.String()
}

// descriptors returns one for a route, and one for a value.
func (s size) descriptors() [][]rules.Entry {
	return [][]rules.Entry{
		{{Key: "route", Value: fmt.Sprintf("/r%d", s.rules/2)}, {Key: "user", Value: "ada"}},
		{{Key: "plan", Value: "paid"}, {Key: "tenant", Value: fmt.Sprintf("t%d", s.values/2)}},
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

// measureReloads prints how long requests take without reloads, and during them.
func (s size) measureReloads(e *engine.Engine, table io.Writer) error {
	quiet, err := s.request(e)
	if err != nil {
		return err
	}
	stop, reloads := make(chan struct{}), make(chan result, 1)
	go func() { reloads <- s.reload(e, stop) }()
	busy, err := s.request(e)
	close(stop)
	r := <-reloads
	if err = errors.Join(err, r.err); err != nil {
		return err
	}
	fmt.Fprintf(table, "median request\t%v\t\t\n", quantile(quiet, 0.5))
	fmt.Fprintf(table, "slowest of %d requests\t%v\t\t\n", len(quiet), quantile(quiet, 1))
	fmt.Fprintf(table, "median request, during %d reloads\t%v\t\t\n", r.n, quantile(busy, 0.5))
	fmt.Fprintf(table, "99.9 %% of requests, during reloads\t%v\t\t\n", quantile(busy, 0.999))
	fmt.Fprintf(table, "slowest of %d requests, during reloads\t%v\t5 ms\t\n", len(busy), quantile(busy, 1))
	return nil
}

// A result is how many times the rules were reloaded.
type result struct {
	n   int
	err error
}

// reload parses and sets the rules again and again, at least once.
func (s size) reload(e *engine.Engine, stop <-chan struct{}) (r result) {
	for {
		set, err := s.parse()
		if err != nil {
			return result{r.n, err}
		}
		e.SetRules(set)
		r.n++
		select {
		case <-stop:
			return r
		default:
		}
	}
}

// pause is between two requests, so that the caller does not fill a processor.
const pause = 100 * time.Microsecond

// request makes requests, at least one, and returns how long each of them took, sorted.
func (s size) request(e *engine.Engine) (times []time.Duration, err error) {
	var r engine.Result
	ds := []engine.Descriptor{{Entries: s.descriptors()[0], Cost: 1}}
	for end := time.Now().Add(s.load); len(times) == 0 || time.Now().Before(end); time.Sleep(pause) {
		began := time.Now()
		if err := e.Decide(context.Background(), domain, ds, &r); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
		if r.OverLimit || r.Statuses[0].Rule == nil {
			return nil, fmt.Errorf("a request was denied, or matched no rule: %+v", r)
		}
	}
	slices.Sort(times)
	return times, nil
}

// quantile returns a quantile of sorted times.
func quantile(times []time.Duration, q float64) time.Duration {
	return times[int(q*float64(len(times)-1))]
}
