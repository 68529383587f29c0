package main

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// lanes are the limits of the picture of all algorithms.
var lanes = []string{
	"10/1s",
	"10/1s burst=3",
	"10/1s leaky-bucket",
	"10/1s fixed-window",
	"10/1s sliding-window",
	"10/1s rolling-window",
	"10/1s sliding-log",
}

// The traffic: one early request, so that windows have an edge at zero, and then
// one every 25 ms from half a second before it to one second after it.
const (
	early = -time.Second
	begin = -500 * time.Millisecond
	end   = time.Second
	every = 25 * time.Millisecond
)

// drawAlgorithms draws the decisions of each algorithm for the same burst of traffic
// across the edge of a window. It runs the real store on a fake clock.
func drawAlgorithms() string {
	const left, top, height = 190, 66, 38
	c := newCanvas(820, top+height*len(lanes)+46, "The same 60 requests under 10 a second, by algorithm")
	x := func(at time.Duration) float64 {
		return left + 480*float64(at-begin)/float64(end-begin)
	}
	c.line(x(0), 56, x(0), float64(top+height*len(lanes)), "axis")
	c.text(x(0), 50, "middle", "soft", "window edge")
	c.text(796, 50, "end", "soft", "most in any second")
	for i, text := range lanes {
		y := float64(top + height*i)
		points, most := simulate(text)
		c.text(16, y+14, "start", "ink mono", text)
		for _, p := range points {
			class, h := "deny", 8.0
			if p.allowed {
				class, h = "pass", 20
			}
			c.rect(x(p.at), y+20-h, 5, h, class)
		}
		c.text(740, y+14, "end", "ink", fmt.Sprint(most))
	}
	bottom := float64(top+height*len(lanes)) + 18
	for _, at := range []time.Duration{begin, 0, end} {
		c.text(x(at), bottom, "middle", "soft", at.String())
	}
	c.text(16, bottom+18, "start", "soft", "Tall: admitted at that instant (leaky bucket: acts). Short: denied.")
	return c.String()
}

type request struct {
	at      time.Duration
	allowed bool
}

// simulate sends the traffic and returns each request with the time at which it acts.
func simulate(text string) (requests []request, most int) {
	edge := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := edge
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	lim := harness.Must(penstock.New(store, harness.Must(penstock.ParseLimit(text))))
	var acts []time.Duration
	for at := early; at < end; at = max(at+every, begin) {
		now = edge.Add(at)
		d := harness.Must(lim.Allow(context.Background(), "key"))
		if d.Allowed {
			acts = append(acts, at+d.Delay)
		}
		if shown := at + d.Delay; at != early && shown < end {
			requests = append(requests, request{shown, d.Allowed})
		}
	}
	return requests, mostInOneSecond(acts)
}

func mostInOneSecond(acts []time.Duration) (most int) {
	for i, from := range acts {
		n := 0
		for _, at := range acts[i:] {
			if at < from+time.Second {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
