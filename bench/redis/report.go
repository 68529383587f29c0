package main

import (
	"context"
	"fmt"
	"io"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A report is the results of a run, in the order of measurement.
type report struct {
	measure.Findings
	clients       []clientRow
	benchmarkRuns []benchmarkRow
	instructions  []instructionRow
	weights       []weight
	splits        []*splitRunner
}

type clientRow struct {
	name                   string
	rate                   float64
	toTrivial, toRedisRate measure.Spread
	client, server, allocs float64
}

type benchmarkRow struct {
	settings, name string
	rate           float64
	toIncr         measure.Spread
	server, inside float64
}

// addClients adds the results of runners, of which the second is the trivial script and
// the third redis_rate.
func (r *report) addClients(runners []*runner, counted int) {
	for _, e := range runners {
		r.clients = append(r.clients, clientRow{
			name:        e.name,
			rate:        measure.SpreadOf(e.rates).Median,
			toTrivial:   e.ratioTo(runners[1]),
			toRedisRate: e.ratioTo(runners[2]),
			client:      measure.SpreadOf(e.client).Median,
			server:      measure.SpreadOf(e.server).Median,
			allocs:      e.allocations(context.Background(), counted),
		})
	}
}

// addBenchmarkRuns adds the results of runs, of which the first is INCR.
func (r *report) addBenchmarkRuns(settings string, runs []*benchmarkRun) {
	for _, p := range runs {
		r.benchmarkRuns = append(r.benchmarkRuns, benchmarkRow{
			settings: settings, name: p.shape.name,
			rate:   measure.SpreadOf(p.rates).Median,
			toIncr: measure.SpreadOf(measure.Ratios(p.rates, runs[0].rates)),
			server: measure.SpreadOf(p.server).Median,
			inside: measure.SpreadOf(p.inside).Median,
		})
	}
}

// write prints the report as Markdown.
func (r *report) write(w io.Writer, checked bool) {
	r.Findings.Write(w, checked)
	r.writeClients(w)
	r.writeSplits(w)
	r.writeBenchmarkRuns(w)
	r.writeInstructions(w)
	r.writeWeights(w)
}

func (r *report) writeClients(w io.Writer) {
	if len(r.clients) == 0 {
		return
	}
	t := measure.Table{
		"limiter", "thousand calls a second", "to a trivial EVALSHA", "to redis_rate",
		"client µs a call", "server µs a call", "allocations",
	}
	t.Begin(w, fmt.Sprintf("Through client libraries, %d goroutines: medians of the rounds, in brackets the 10th to the 90th percentile", goroutines))
	for _, m := range r.clients {
		t.Row(w, m.name, thousandsOf(m.rate), measure.TimesWithSpread(m.toTrivial), measure.TimesWithSpread(m.toRedisRate),
			decimal(m.client), decimal(m.server), decimal(m.allocs))
	}
}

func (r *report) writeSplits(w io.Writer) {
	if len(r.splits) == 0 {
		return
	}
	t := measure.Table{"where", "keys of a call", "thousand calls a second", "client µs a call", "kernel, for the client", "primaries", "replicas", "in all"}
	t.Begin(w, fmt.Sprintf("Processor time of a call by one program with %d goroutines: medians of the rounds", goroutines))
	for _, m := range r.splits {
		row := []string{m.name, fmt.Sprint(m.keys), thousandsOf(measure.SpreadOf(m.rates).Median)}
		for _, list := range [][]float64{m.user, m.system, m.primaries, m.replicas, m.total()} {
			row = append(row, decimal(measure.SpreadOf(list).Median))
		}
		t.Row(w, row...)
	}
}

func (r *report) writeBenchmarkRuns(w io.Writer) {
	if len(r.benchmarkRuns) == 0 {
		return
	}
	t := measure.Table{"redis-benchmark", "shape", "thousand a second", "to INCR", "server µs each", "of these inside the command"}
	t.Begin(w, "By redis-benchmark")
	for _, m := range r.benchmarkRuns {
		t.Row(w, m.settings, m.name, thousandsOf(m.rate), measure.TimesWithSpread(m.toIncr), decimal(m.server), decimal(m.inside))
	}
}

func (r *report) writeInstructions(w io.Writer) {
	if len(r.instructions) == 0 {
		return
	}
	t := measure.Table{"shape", "server instructions each", "to INCR"}
	t.Begin(w, "Instructions of the server, counted by callgrind")
	for _, m := range r.instructions {
		t.Row(w, m.name, fmt.Sprintf("%.0f", m.each), measure.Times(m.each/r.instructions[0].each))
	}
}

func (r *report) writeWeights(w io.Writer) {
	if len(r.weights) == 0 {
		return
	}
	t := measure.Table{"shape", "where", "keys", "bytes a key"}
	t.Begin(w, "Memory: used_memory of the server, every key live")
	for _, m := range r.weights {
		t.Row(w, m.name, m.where, measure.Thousands(m.keys), decimal(m.bytes))
	}
}

func thousandsOf(rate float64) string { return fmt.Sprintf("%.0f", rate/1000) }
func decimal(x float64) string        { return fmt.Sprintf("%.1f", x) }
