package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// An axis places values, from the lowest to the highest, between two places of a picture.
type axis struct {
	low, high, from, to float64
	logarithmic         bool
}

func (a axis) at(v float64) float64 {
	if a.logarithmic {
		return a.from + (a.to-a.from)*math.Log10(v/a.low)/math.Log10(a.high/a.low)
	}
	return a.from + (a.to-a.from)*(v-a.low)/(a.high-a.low)
}

// grid draws lines at values of the vertical axis.
func (c *canvas) grid(x, y axis, values ...float64) {
	for _, v := range values {
		c.line(x.from, y.at(v), x.to, y.at(v), "grid")
		c.text(52, y.at(v)+4, "end", "soft", fmt.Sprintf("%.0f", v))
	}
}

// steps returns the multiples of a step below an end.
func steps(step, end float64) (values []float64) {
	for v := 0.0; v < end; v += step {
		values = append(values, v)
	}
	return values
}

// A series is the figures of one limiter.
type series struct {
	name   string
	points []xy
}

// A look is how a series is drawn: the classes of its line and of its label, and what is drawn on top
// of it, which has a higher rank.
type look struct {
	line, label string
	rank        int
}

var looks = map[string]look{
	"penstock": {"ours", "oursText", 2},
	"admitted": {"ours", "oursText", 2},
	"bound":    {"bound", "boundText", 1},
	"floor":    {"floor", "floorText", 1},
}

func (s series) look() look { return cmp.Or(looks[s.name], look{"rival", "soft", 0}) }

// readSeries returns the series of rows of a name and two figures.
func readSeries(rows [][]string) (all []series) {
	for _, row := range rows {
		v := numbers(row[1:]...)
		i := slices.IndexFunc(all, func(s series) bool { return s.name == row[0] })
		if i < 0 {
			i, all = len(all), append(all, series{name: row[0]})
		}
		all[i].points = append(all[i].points, xy{v[0], v[1]})
	}
	return all
}

// lines draws series, with labels at the right edge that say the last figure.
func (c *canvas) lines(all []series, x, y axis, edge float64, label func(s series, last float64) string) {
	slices.SortStableFunc(all, func(a, b series) int { return cmp.Compare(a.look().rank, b.look().rank) })
	var labels []placed
	for _, s := range all {
		var points []xy
		for _, p := range s.points {
			points = append(points, xy{x.at(p.x), y.at(p.y)})
		}
		c.path(points, s.look().line)
		last := s.points[len(s.points)-1].y
		labels = append(labels, placed{y.at(last), label(s, last), s.look().label})
	}
	for _, l := range spreadLabels(labels) {
		c.text(edge, l.y+4, "start", l.class, l.text)
	}
}

func withFigure(unit string) func(series, float64) string {
	return func(s series, last float64) string { return fmt.Sprintf("%s, %.0f%s", s.name, last, unit) }
}

type placed struct {
	y           float64
	text, class string
}

// spreadLabels moves labels apart so that none covers another.
func spreadLabels(labels []placed) []placed {
	const height = 16
	slices.SortFunc(labels, func(a, b placed) int { return cmp.Compare(a.y, b.y) })
	for i := 1; i < len(labels); i++ {
		labels[i].y = max(labels[i].y, labels[i-1].y+height)
	}
	return labels
}

// drawKeys plots the time of a decision against the number of keys.
func drawKeys(rows [][]string) string {
	c := newCanvas(860, 470, "Nanoseconds a decision, by number of keys (lower is better)")
	x, y := axis{1, 1e6, 60, 580, true}, axis{20, 5000, 425, 65, true}
	c.grid(x, y, 20, 50, 100, 200, 500, 1000, 2000, 5000)
	for i, label := range []string{"1", "10", "100", "1,000", "10,000", "100,000", "1 million"} {
		c.text(x.at(math.Pow10(i)), 447, "middle", "soft", label)
	}
	c.lines(readSeries(rows), x, y, 588, withFigure(" ns"))
	return c.String()
}

// overloadTitles are the pictures of goodput by offered load, by case.
var overloadTitles = map[string]string{
	"busy": "Served within 100 ms, a second (higher is better)",
	"idle": "The same, when the workers wait for a database",
}

// drawOverload plots goodput against offered load.
func drawOverload(rows [][]string, which string) string {
	var of [][]string
	for _, row := range rows {
		if row[0] == which {
			of = append(of, row[1:])
		}
	}
	if len(of) == 0 {
		harness.Check(fmt.Errorf("there is no case %q", which))
	}
	c := newCanvas(860, 470, overloadTitles[which])
	c.text(16, 46, "start", "soft", "A server of 1,000 calls a second: ten workers, 10 ms a call.")
	x, y := axis{500, 10_000, 60, 620, true}, axis{0, 1100, 400, 80, false}
	c.grid(x, y, steps(250, 1001)...)
	for _, offered := range []float64{500, 1000, 2000, 5000, 10000} {
		anchor := "middle"
		if offered == 10000 { // there are labels beside it
			anchor = "end"
		}
		c.text(x.at(offered), 420, anchor, "soft", fmt.Sprintf("%.0f", offered))
	}
	c.text(340, 442, "middle", "soft", "calls offered, a second")
	c.line(x.at(1000), y.at(1100), x.at(1000), y.at(0), "axis")
	c.text(x.at(1000)+6, y.at(1100)+10, "start", "soft", "capacity")
	c.lines(readSeries(of), x, y, 630, withFigure(""))
	return c.String()
}

// drawRealOverload plots what a real server serves of its capacity, against the load as a multiple of that.
func drawRealOverload(rows [][]string) string {
	const which = "computes, GOMAXPROCS=1"
	var of [][]string
	for _, row := range rows {
		if row[0] == which {
			of = append(of, []string{row[1], row[2], fmt.Sprint(100 * numbers(row[3])[0])})
		}
	}
	if len(of) == 0 {
		harness.Check(fmt.Errorf("there is no case %q", which))
	}
	c := newCanvas(860, 470, "Served within 200 ms, in percent of the capacity (higher is better)")
	c.text(16, 46, "start", "soft", "A real HTTP server on one processor, handlers that compute for 10 ms in the mean.")
	x, y := axis{0.8, 10, 60, 620, true}, axis{0, 110, 400, 80, false}
	c.grid(x, y, steps(25, 101)...)
	for _, times := range []string{"0.8", "1.2", "2", "5", "10"} {
		anchor := "middle"
		if times == "10" { // there are labels beside it
			anchor = "end"
		}
		c.text(x.at(numbers(times)[0]), 420, anchor, "soft", times+"×")
	}
	c.text(340, 442, "middle", "soft", "requests offered, as a multiple of the capacity")
	c.lines(readSeries(of), x, y, 630, withFigure(" %"))
	return c.String()
}

// drawOutage plots what was admitted against the bound while Redis was down.
func drawOutage(rows [][]string) string {
	bound, admitted, down := series{name: "bound"}, series{name: "admitted"}, []float64(nil)
	for _, row := range rows {
		v := numbers(row...)
		admitted.points, bound.points = append(admitted.points, xy{v[0], v[1]}), append(bound.points, xy{v[0], v[2]})
		if v[3] == 1 {
			down = append(down, v[0])
		}
	}
	if len(down) == 0 {
		harness.Check(errors.New("there is no outage"))
	}
	c := newCanvas(820, 400, "Units admitted while Redis is killed and comes back empty")
	last := bound.points[len(bound.points)-1]
	x, y := axis{0, last.x, 60, 680, false}, axis{0, 1.05 * last.y, 350, 50, false}
	from, to := x.at(down[0]), x.at(down[len(down)-1])
	c.rect(from, 50, to-from, 300, "down")
	c.text((from+to)/2, 336, "middle", "boundText", "Redis is down")
	c.grid(x, y, steps(500, y.high)...)
	for _, s := range steps(2, x.high+0.01) {
		c.text(x.at(s), 370, "middle", "soft", fmt.Sprintf("%.0f s", s))
	}
	c.text(16, 390, "start", "soft", "Two processes, one key under 100 a second, 500 requests a second offered. No caller sees an error.")
	c.lines([]series{bound, admitted}, x, y, 688, func(s series, _ float64) string { return s.name })
	return c.String()
}

// drawRegions plots what three regions admit under one limit.
func drawRegions(rows [][]string) string {
	all := []series{{name: "bound"}, {name: "penstock"}, {name: "counters"}, {name: "split"}}
	labels := map[string]string{"bound": "one store", "penstock": "penstock", "counters": "counters, 1 s late", "split": "a third each"}
	for _, row := range rows {
		v := numbers(row...)
		for i := range all {
			all[i].points = append(all[i].points, xy{v[0], v[i+1]})
		}
	}
	c := newCanvas(820, 400, "Units admitted by three regions under one limit of 1000 a minute")
	x, y := axis{0, 150, 60, 610, false}, axis{0, 5250, 350, 50, false}
	c.grid(x, y, steps(1000, y.high)...)
	for _, s := range steps(30, 151) {
		c.text(x.at(s), 370, "middle", "soft", fmt.Sprintf("%.0f s", s))
	}
	c.text(16, 390, "start", "soft", "At first one region asks for twice the limit, then all rest, then all ask at once. Round trips of 1, 80 and 200 ms, simulated.")
	c.lines(all, x, y, 618, func(s series, last float64) string { return fmt.Sprintf("%s, %.0f", labels[s.name], last) })
	return c.String()
}
