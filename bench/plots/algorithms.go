package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/server/simulator"
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
// across the edge of a window. It asks the daemon's simulator.
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
		lane := simulate(text)
		c.text(16, y+14, "start", "ink mono", text)
		for _, r := range lane.Results[1:] {
			class, h := "deny", 8.0
			if r.Allowed {
				class, h = "pass", 20
			}
			if at := early + r.At + r.Delay; at < end {
				c.rect(x(at), y+20-h, 5, h, class)
			}
		}
		c.text(740, y+14, "end", "ink", fmt.Sprint(lane.MostInPeriod))
	}
	bottom := float64(top+height*len(lanes)) + 18
	for _, at := range []time.Duration{begin, 0, end} {
		c.text(x(at), bottom, "middle", "soft", at.String())
	}
	c.text(16, bottom+18, "start", "soft", "Tall: admitted at that instant (leaky bucket: acts). Short: denied.")
	return c.String()
}

// simulate sends the traffic, and returns what the algorithm does to it. Times are since the early request.
func simulate(text string) simulator.Lane {
	var arrivals []simulator.Arrival
	for at := early; at < end; at = max(at+every, begin) {
		arrivals = append(arrivals, simulator.Arrival{At: at - early, Cost: 1})
	}
	all := harness.Must(simulator.RunArrivals(text, arrivals)).Lanes
	return all[slices.IndexFunc(all, func(l simulator.Lane) bool { return l.Written })]
}
