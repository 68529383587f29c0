package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

// The outage: the limit of one key, the number of processes that share it, and their requests.
const (
	outageRate      = 100 // a second, and the burst
	outageProcesses = 2
	outageOffered   = 500 // a second, of all processes
	outageSample    = 100 * time.Millisecond
)

// A point is what had been admitted at a time of the outage.
type point struct {
	at                 time.Duration
	admitted, fallback int64
	bound              float64
	down               bool
}

// outage shows what two processes admit of one key while Redis is killed and comes back empty. It is a
// wrong workload if more was admitted than docs/reliability.md states, or if there was no outage.
func (b *bench) outage() {
	length := harness.Scale(b.Run, 12*time.Second, 6*time.Second)
	server := redistest.StartForTest(b, redistest.Options{})
	var lims []*penstock.Limiter
	for range outageProcesses {
		store := b.OpenStore("redis://"+server.Addr, usual)
		lims = append(lims, limiter(penstock.WithFallback(store, nil, &penstock.FallbackOptions{Share: 1.0 / outageProcesses}), fmt.Sprintf("%d/1s", outageRate)))
	}
	var next, admitted, fallback atomic.Int64
	begin := time.Now()
	stop := inBackground(outageOffered, outageProcesses, func(*rand.Rand) (penstock.Decision, error) {
		d, err := lims[next.Add(1)%outageProcesses].Allow(context.Background(), "user:42")
		if d.Allowed && d.Source == penstock.SourceFallback {
			fallback.Add(1)
		}
		admitted.Add(d.Granted)
		return d, err
	})
	defer stop()
	samples := watchOutage(server, begin, length, &admitted, &fallback)
	if err := stop().First; err != nil {
		b.Fatalf("a caller saw an error: %w", err)
	}
	harness.Check(checkOutage(samples))
	last := samples[len(samples)-1]
	b.Find("Redis is killed and comes back empty, two processes", "no more than docs/reliability.md states, no caller sees an error", true,
		"%d admitted, the bound is %.0f", last.admitted, last.bound)
	if b.csv != "" {
		harness.WriteCSV(b.csv, outageTable(samples))
	}
}

// watchOutage samples the counters, and kills and restarts Redis in between, in the second third of
// the time and after the fallback has decided. A Redis that is late is an outage too.
func watchOutage(server *redistest.Server, begin time.Time, length time.Duration, admitted, fallback *atomic.Int64) (samples []point) {
	killed, restarted := false, false
	outages, decided, before := 0, false, int64(0) // decided is whether the fallback did in the last sample
	for last := int64(0); ; <-time.After(outageSample) {
		// The clock is read last, so that nothing is admitted after the time of a sample.
		p := point{admitted: admitted.Load(), fallback: fallback.Load(), down: killed && !restarted}
		if p.at = time.Since(begin); p.at >= length {
			return samples
		}
		if p.fallback > last && !decided {
			outages++
		}
		decided, last = p.fallback > last, p.fallback
		p.bound = outageBound(p.at, outages, restarted)
		samples = append(samples, p)
		switch {
		case !killed && p.at >= length/3:
			server.Kill()
			killed, before = true, fallback.Load()
		case killed && !restarted && p.at >= 2*length/3 && p.fallback > before:
			restarted = server.Restart() == nil
		}
	}
}

// outageBound is the bound of docs/reliability.md, F1 with a fallback: one burst and the rate, one
// burst of all shares together for each outage, one burst for the lost state.
func outageBound(at time.Duration, outages int, lost bool) float64 {
	bound := outageRate + outageRate*at.Seconds() + float64(outageRate*outages)
	if lost {
		bound += outageRate
	}
	return bound
}

func outageTable(samples []point) [][]string {
	lines := [][]string{{"seconds", "admitted", "bound", "down"}}
	for _, s := range samples {
		down := map[bool]string{false: "0", true: "1"}[s.down]
		lines = append(lines, []string{fmt.Sprintf("%.1f", s.at.Seconds()), strconv.FormatInt(s.admitted, 10), fmt.Sprintf("%.0f", s.bound), down})
	}
	return lines
}

func checkOutage(samples []point) error {
	for _, s := range samples {
		const slack = 1 // the clock of Redis counts milliseconds
		if float64(s.admitted) > s.bound+slack {
			return fmt.Errorf("at %v %d were admitted, and the bound is %.0f", s.at, s.admitted, s.bound)
		}
	}
	if samples[len(samples)-1].fallback == 0 {
		return errors.New("the fallback decided nothing: there was no outage")
	}
	return nil
}
