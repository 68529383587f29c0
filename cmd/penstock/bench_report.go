package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// A benchResult is the result of a bench. Times are in nanoseconds.
type benchResult struct {
	API       string         `json:"api"`
	Addr      string         `json:"addr"`
	Callers   int            `json:"callers"`
	Pipeline  int            `json:"pipeline"`
	Keys      int            `json:"keys"`
	Units     int            `json:"units"`
	Seconds   float64        `json:"seconds"`
	Requests  int64          `json:"requests"`
	Allowed   int64          `json:"allowed"`
	Denied    int64          `json:"denied"`
	PerSecond float64        `json:"per_second"`
	Mean      time.Duration  `json:"mean_ns"`
	P50       time.Duration  `json:"p50_ns"`
	P90       time.Duration  `json:"p90_ns"`
	P99       time.Duration  `json:"p99_ns"`
	P999      time.Duration  `json:"p999_ns"`
	Max       time.Duration  `json:"max_ns"`
	Histogram []histogramRow `json:"histogram"`
	Error     string         `json:"error,omitempty"` // a key with a wrong number of units allowed
}

func (b *benchRun) report(w io.Writer) error {
	all := merged(b.latencies)
	r := b.result(all)
	if b.json {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(r); err != nil {
			return err
		}
	} else {
		r.print(w, all)
	}
	if r.Error != "" {
		return errNegative
	}
	return nil
}

func (b *benchRun) result(all *histogram) benchResult {
	elapsed := time.Since(b.started)
	requests, allowed := b.totals()
	return benchResult{
		API: b.api, Addr: b.addr, Callers: b.callers, Pipeline: b.pipeline, Keys: b.keys, Units: b.units,
		Seconds: elapsed.Seconds(), Requests: requests, Allowed: allowed, Denied: requests - allowed,
		PerSecond: float64(requests) / elapsed.Seconds(),
		Mean:      all.mean(), P50: all.quantile(.5), P90: all.quantile(.9),
		P99: all.quantile(.99), P999: all.quantile(.999), Max: time.Duration(all.max.Load()),
		Histogram: all.rows(), Error: b.checkCounts(elapsed),
	}
}

func (r benchResult) print(w io.Writer, all *histogram) {
	fmt.Fprintf(w, "%s at %s, %s, %s\n", r.API, r.Addr, plural(r.Callers, "caller"), plural(r.Keys, "key"))
	all.draw(w)
	fmt.Fprintf(w, "p50 %s  p90 %s  p99 %s  p99.9 %s  max %s\n", shortDuration(r.P50), shortDuration(r.P90),
		shortDuration(r.P99), shortDuration(r.P999), shortDuration(r.Max))
	fmt.Fprintf(w, "%d requests in %.1fs, %.0f/s; %d allowed, %d denied\n", r.Requests, r.Seconds, r.PerSecond, r.Allowed, r.Denied)
	if r.Error != "" {
		fmt.Fprintln(w, "error:", r.Error)
	}
}

// checkCounts returns an error text if the server allowed too many or too few requests of
// a key, or "". A key has its units for a day. They refill evenly, or all at once when a
// day begins, depending on the API's algorithm.
func (b *benchRun) checkCounts(elapsed time.Duration) string {
	most := int64(b.units) + 1 + int64(float64(b.units)*elapsed.Hours()/24)
	if now := time.Now().UTC(); now.YearDay() != now.Add(-elapsed).YearDay() {
		most += int64(b.units)
	}
	for i := range b.keyNames {
		requests, allowed := b.requests[i].Load(), b.allowed[i].Load()
		if allowed > most || allowed < min(requests, int64(b.units)) {
			return fmt.Sprintf("key %s: %d requests, %d allowed, limit %d", b.keyNames[i], requests, allowed, b.units)
		}
	}
	return ""
}
