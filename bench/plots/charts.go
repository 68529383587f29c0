package main

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A canvas collects the elements of one SVG. It follows the reader's light or dark
// colour scheme.
type canvas struct {
	width, height int
	b             strings.Builder
}

const style = `
	.bg { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e }
	.axis { stroke: #8c959f; stroke-width: 1 } .grid { stroke: #d1d9e0; stroke-width: 1 }
	.rival { stroke: #8c959f; fill: none; stroke-width: 1.5 } .ours { stroke: #0969da; fill: none; stroke-width: 3 }
	.floor { stroke: #1a7f37; fill: none; stroke-width: 1.5; stroke-dasharray: 4 4 } .bound { stroke: #cf222e; fill: none; stroke-width: 2; stroke-dasharray: 6 4 }
	.down { fill: #cf222e; fill-opacity: 0.1 } .pass { fill: #0969da } .deny { fill: #d1d9e0 }
	.oursText { fill: #0969da; font-weight: 600 } .floorText { fill: #1a7f37 } .boundText { fill: #cf222e }
	text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif } .title { font-size: 16px; font-weight: 600 } .mono { font-family: ui-monospace, monospace }
	@media (prefers-color-scheme: dark) {
		.bg { fill: #0d1117 } .ink { fill: #f0f6fc } .soft { fill: #9198a1 }
		.axis { stroke: #656c76 } .grid { stroke: #2a313c } .rival { stroke: #656c76 } .ours { stroke: #4493f8 }
		.floor { stroke: #3fb950 } .bound { stroke: #f85149 } .down { fill: #f85149; fill-opacity: 0.15 }
		.pass { fill: #4493f8 } .deny { fill: #2a313c } .oursText { fill: #4493f8 } .floorText { fill: #3fb950 } .boundText { fill: #f85149 }
	}
`

func newCanvas(width, height int, title string) *canvas {
	c := &canvas{width: width, height: height}
	fmt.Fprintf(&c.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		width, height, width, height, html.EscapeString(title))
	fmt.Fprintf(&c.b, "<style>%s</style>\n", style)
	fmt.Fprintf(&c.b, `<rect class="bg" width="%d" height="%d" rx="6"/>`+"\n", width, height)
	c.text(16, 26, "start", "ink title", title)
	return c
}

func (c *canvas) String() string { return c.b.String() + "</svg>\n" }

func (c *canvas) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&c.b, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, html.EscapeString(text))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&c.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

func (c *canvas) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(&c.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s"/>`+"\n", x, y, w, h, class)
}

type xy struct{ x, y float64 }

func (c *canvas) path(points []xy, class string) {
	var d strings.Builder
	command := 'M'
	for _, p := range points {
		fmt.Fprintf(&d, "%c%.1f %.1f", command, p.x, p.y)
		command = 'L'
	}
	fmt.Fprintf(&c.b, `<path d="%s" class="%s"/>`+"\n", d.String(), class)
}

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

// ticks prints values below the horizontal axis. The last may end there, because there are labels beside it.
func (c *canvas) ticks(x axis, y float64, last, format string, values ...float64) {
	for i, v := range values {
		anchor := "middle"
		if i == len(values)-1 {
			anchor = last
		}
		c.text(x.at(v), y, anchor, "soft", fmt.Sprintf(format, v))
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
	"penstock":  {"ours", "oursText", 2},
	"admitted":  {"ours", "oursText", 2},
	"bound":     {"bound", "boundText", 1},
	"one store": {"bound", "boundText", 1},
	"floor":     {"floor", "floorText", 1},
}

func (s series) last() float64 { return s.points[len(s.points)-1].y }

func (s series) look() look { return cmp.Or(looks[s.name], look{"rival", "soft", 0}) }

// readSeries returns the series of rows of a name and two figures, the second of which is multiplied.
func readSeries(rows [][]string, times float64) (all []series) {
	for _, row := range rows {
		v := numbers(row[1:]...)
		i := slices.IndexFunc(all, func(s series) bool { return s.name == row[0] })
		if i < 0 {
			i, all = len(all), append(all, series{name: row[0]})
		}
		all[i].points = append(all[i].points, xy{v[0], times * v[1]})
	}
	return all
}

// readCase returns the series of the rows that begin with the name of a case.
func readCase(rows [][]string, which string, times float64) []series {
	var of [][]string
	for _, row := range rows {
		if row[0] == which {
			of = append(of, row[1:])
		}
	}
	if len(of) == 0 {
		harness.Failf("there is no case %q", which)
	}
	return readSeries(of, times)
}

// readColumns returns the series of the columns after the first, which is the time.
func readColumns(rows [][]string, names ...string) []series {
	all := make([]series, len(names))
	for i, name := range names {
		all[i].name = name
		for _, row := range rows {
			v := numbers(row...)
			all[i].points = append(all[i].points, xy{v[0], v[i+1]})
		}
	}
	return all
}

// lines draws series, with labels at the right edge that say the last figure, moved apart so that none covers another.
func (c *canvas) lines(all []series, x, y axis, edge float64, format string) {
	const height = 16 // of a label
	slices.SortStableFunc(all, func(a, b series) int { return cmp.Compare(a.look().rank, b.look().rank) })
	for _, s := range all {
		var points []xy
		for _, p := range s.points {
			points = append(points, xy{x.at(p.x), y.at(p.y)})
		}
		c.path(points, s.look().line)
	}
	slices.SortFunc(all, func(a, b series) int { return cmp.Compare(y.at(a.last()), y.at(b.last())) })
	above := 0.0
	for _, s := range all {
		above = max(y.at(s.last()), above+height)
		c.text(edge, above+4, "start", s.look().label, fmt.Sprintf(format, s.name, s.last()))
	}
}

// drawKeys plots the time of a decision against the number of keys.
func drawKeys(rows [][]string) string {
	c := newCanvas(860, 470, "Nanoseconds a decision, by number of keys (lower is better)")
	x, y := axis{1, 1e6, 60, 580, true}, axis{20, 5000, 425, 65, true}
	c.grid(x, y, 20, 50, 100, 200, 500, 1000, 2000, 5000)
	for i, label := range []string{"1", "10", "100", "1,000", "10,000", "100,000", "1 million"} {
		c.text(x.at(math.Pow10(i)), 447, "middle", "soft", label)
	}
	c.lines(readSeries(rows, 1), x, y, 588, "%s, %.0f ns")
	return c.String()
}

// overloadTitles are the pictures of goodput by offered load, by case.
var overloadTitles = map[string]string{
	"busy": "Served within 100 ms, a second (higher is better)",
	"idle": "The same, when the workers wait for a database",
}

// drawOverload plots goodput against offered load.
func drawOverload(rows [][]string, which string) string {
	all := readCase(rows, which, 1)
	c := newCanvas(860, 470, overloadTitles[which])
	c.text(16, 46, "start", "soft", "A server of 1,000 calls a second: ten workers, 10 ms a call.")
	x, y := axis{500, 10_000, 60, 620, true}, axis{0, 1100, 400, 80, false}
	c.grid(x, y, steps(250, 1001)...)
	c.ticks(x, 420, "end", "%.0f", 500, 1000, 2000, 5000, 10_000)
	c.text(340, 442, "middle", "soft", "calls offered, a second")
	c.line(x.at(1000), y.at(1100), x.at(1000), y.at(0), "axis")
	c.text(x.at(1000)+6, y.at(1100)+10, "start", "soft", "capacity")
	c.lines(all, x, y, 630, "%s, %.0f")
	return c.String()
}

// drawRealOverload plots what a real server serves of its capacity, against the load as a multiple of that.
func drawRealOverload(rows [][]string) string {
	all := readCase(rows, "computes, GOMAXPROCS=1", 100)
	c := newCanvas(860, 470, "Served within 200 ms, in percent of the capacity (higher is better)")
	c.text(16, 46, "start", "soft", "A real HTTP server on one processor, handlers that compute for 10 ms in the mean.")
	x, y := axis{0.8, 10, 60, 620, true}, axis{0, 110, 400, 80, false}
	c.grid(x, y, steps(25, 101)...)
	c.ticks(x, 420, "end", "%g×", 0.8, 1.2, 2, 5, 10)
	c.text(340, 442, "middle", "soft", "requests offered, as a multiple of the capacity")
	c.lines(all, x, y, 630, "%s, %.0f %%")
	return c.String()
}

// drawOutage plots what was admitted against the bound while Redis was down.
func drawOutage(rows [][]string) string {
	all := readColumns(rows, "admitted", "bound", "down")
	down, last := slices.DeleteFunc(all[2].points, func(p xy) bool { return p.y == 0 }), all[1].points[len(rows)-1]
	if len(down) == 0 {
		harness.Check(errors.New("there is no outage"))
	}
	c := newCanvas(820, 400, "Units admitted while Redis is killed and comes back empty")
	x, y := axis{0, last.x, 60, 680, false}, axis{0, 1.05 * last.y, 350, 50, false}
	from, to := x.at(down[0].x), x.at(down[len(down)-1].x)
	c.rect(from, 50, to-from, 300, "down")
	c.text((from+to)/2, 336, "middle", "boundText", "Redis is down")
	c.grid(x, y, steps(500, y.high)...)
	c.ticks(x, 370, "middle", "%.0f s", steps(2, x.high+0.01)...)
	c.text(16, 390, "start", "soft", "Two processes, one key under 100 a second, 500 requests a second offered. No caller sees an error.")
	c.lines(all[:2], x, y, 688, "%[1]s")
	return c.String()
}

// drawRegions plots what three regions admit under one limit.
func drawRegions(rows [][]string) string {
	c := newCanvas(820, 400, "Units admitted by three regions under one limit of 1000 a minute")
	x, y := axis{0, 150, 60, 610, false}, axis{0, 5250, 350, 50, false}
	c.grid(x, y, steps(1000, y.high)...)
	c.ticks(x, 370, "middle", "%.0f s", steps(30, 151)...)
	c.text(16, 390, "start", "soft", "At first one region asks for twice the limit, then all rest, then all ask at once. Round trips of 1, 80 and 200 ms, simulated.")
	c.lines(readColumns(rows, "one store", "penstock", "counters, 1 s late", "a third each"), x, y, 618, "%s, %.0f")
	return c.String()
}
