// Command plots draws the pictures of the documents from the results of benchmarks
// and from the store itself: docs/images/*.svg.
//
//	go run ./memory -series results/keys.csv
//	go run ./resilience -run outage -csv results/outage.csv
//	go run ./overload -run offered -csv results/overload.csv
//	go run ./overload -run '^real$' -real-csv results/overload-real.csv
//	(cd .. && go test ./regions -run TestSeries -regions.series ../bench/results/regions.csv)
//	go run ./plots
package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/server/simulator"
)

func main() {
	r := harness.New("plots", os.Stdout, os.Stderr)
	results := r.Flags.String("results", "results", "the folder of the results")
	images := r.Flags.String("images", "../docs/images", "the folder of the pictures")
	r.Prepare = func() {
		r.Done = true // there is no report
		harness.Check(os.MkdirAll(filepath.Join(*images, chineseFolder), 0o755))
		for _, p := range pictures {
			text := p.text(*results)
			if text != "" {
				harness.Check(os.WriteFile(filepath.Join(*images, p.name), []byte(text), 0o644))
			}
			if translated := chinese.Replace(text); translated != text {
				harness.Check(os.WriteFile(filepath.Join(*images, chineseFolder, p.name), []byte(translated), 0o644))
			}
		}
	}
	os.Exit(r.Main(os.Args[1:], nil))
}

// A picture is drawn from a file of the results, or from none.
type picture struct {
	name, file string
	draw       func(rows [][]string) string
}

var pictures = []picture{
	{"algorithms.svg", "", func([][]string) string { return drawAlgorithms() }},
	{"keys.svg", "keys.csv", drawKeys},
	{"outage.svg", "outage.csv", drawOutage},
	{"regions.svg", "regions.csv", drawRegions},
	{"overload-busy.svg", "overload.csv", func(rows [][]string) string {
		return drawOverload(rows, "busy", "Served within 100 ms, a second (higher is better)")
	}},
	{"overload-idle.svg", "overload.csv", func(rows [][]string) string {
		return drawOverload(rows, "idle", "The same, when the workers wait for a database")
	}},
	{"overload-real.svg", "overload-real.csv", drawRealOverload},
}

// text returns the text of the picture, or "" without results: those of real servers need a quiet machine.
func (p picture) text(results string) string {
	if p.file == "" {
		return p.draw(nil)
	}
	f, err := os.Open(filepath.Join(results, p.file))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // only read from
	return p.draw(harness.Must(csv.NewReader(f).ReadAll())[1:])
}

// numbers parses cells.
func numbers(cells ...string) []float64 {
	values := make([]float64, len(cells))
	for i, c := range cells {
		values[i] = harness.Must(strconv.ParseFloat(c, 64))
	}
	return values
}

// chinese has the labels of the pictures that the Chinese documents show. Numbers and names stay as they are.
var chinese = strings.NewReplacer(
	"window edge", "窗口边界",
	"most in any second", "任意一秒内最多",
	"The same 60 requests under 10 a second, by algorithm", "同样的 60 个请求，限额每秒 10 个，各算法的结果",
	"Tall: admitted at that instant (leaky bucket: acts). Short: denied.", "高：在该时刻放行（漏桶：实际执行）；矮：拒绝。",
	"Nanoseconds a decision, by number of keys (lower is better)", "每次判定的纳秒数与 key 数量的关系（越低越好）",
	">1 million<", ">100 万<",
	">keys<", ">key 数量<",
	">pale: ", ">浅色：其他 ",
	" others<", " 种<",
	">100,000<", ">10 万<",
	">10,000<", ">1 万<",
	">floor, ", ">下限（读一次时钟加一次 CAS），",
	"Units admitted while Redis is killed and comes back empty", "Redis 被杀、重启后为空，其间放行的数量",
	"Two processes, one key under 100 a second, 500 requests a second offered. No caller sees an error.",
	"两个进程，一个 key，限额每秒 100，每秒来 500 个请求。调用方看不到任何错误。",
	"Units admitted by three regions under one limit of 1000 a minute", "三个地域共用一个限额（每分钟 1000）时放行的数量",
	"At first one region asks for twice the limit, then all rest, then all ask at once. Round trips of 1, 80 and 200 ms, simulated.",
	"先是一个地域要两倍的限额，随后都停下来，最后一齐请求。往返时间 1、80、200 毫秒，仿真。",
	">counters, 1 s late, ", ">计数器，晚 1 秒同步，",
	">one store, ", ">单一存储，",
	">a third each, ", ">各分三分之一，",
	">Redis is down<", ">Redis 宕机<",
	">admitted<", ">实际放行<",
	">bound<", ">上界<",
)

// chineseFolder is where they are, below the folder of the others.
const chineseFolder = "zh-CN"

// lanes are the limits of the picture of all algorithms.
var lanes = []string{
	"10/1s", "10/1s burst=3", "10/1s leaky-bucket", "10/1s fixed-window", "10/1s sliding-window", "10/1s rolling-window", "10/1s sliding-log",
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
	.ideal { stroke: #1f2328; fill: none; stroke-width: 2; stroke-dasharray: 2 4 } .faded { stroke: #d1d9e0; fill: none; stroke-width: 1.2 }
	.down { fill: #cf222e; fill-opacity: 0.1 } .pass { fill: #0969da } .deny { fill: #d1d9e0 }
	.oursText { fill: #0969da; font-weight: 600 } .floorText { fill: #1a7f37 } .boundText { fill: #cf222e }
	text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif } .title { font-size: 16px; font-weight: 600 } .mono { font-family: ui-monospace, monospace }
	@media (prefers-color-scheme: dark) {
		.bg { fill: #0d1117 } .ink { fill: #f0f6fc } .soft { fill: #9198a1 }
		.axis { stroke: #656c76 } .grid { stroke: #2a313c } .rival { stroke: #656c76 } .ours { stroke: #4493f8 }
		.floor { stroke: #3fb950 } .bound { stroke: #f85149 } .ideal { stroke: #f0f6fc } .faded { stroke: #373e47 } .down { fill: #f85149; fill-opacity: 0.15 }
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
	"one store": {"ideal", "soft", 1},
	"floor":     {"floor", "floorText", 1},

	// The others of keys.svg, which names the three that are chosen most: nobody reads ten labels. Without one a series is pale.
	"x/time/rate, map and mutex":   {"faded", "", -1},
	"ulule/limiter":                {"faded", "", -1},
	"failsafe-go bursty, sync.Map": {"faded", "", -1},
	"failsafe-go smooth, sync.Map": {"faded", "", -1},
	"juju/ratelimit, sync.Map":     {"faded", "", -1},
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

// readLatencies returns the series of the last figure of a case, as far as it is on the axis: where nothing is served there is none.
func readLatencies(rows [][]string, which string, y axis) []series {
	var of [][]string
	for _, row := range rows {
		if ms := numbers(row[len(row)-1])[0]; ms >= y.low && ms <= y.high {
			of = append(of, []string{row[0], row[1], row[2], row[len(row)-1]})
		}
	}
	return readCase(of, which, 1)
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
	all = slices.DeleteFunc(slices.Clone(all), func(s series) bool { return s.look().label == "" })
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
	c.text((x.at(1)+x.at(1e6))/2, 466, "middle", "soft", "keys")
	c.text(16, 48, "start", "soft", "ns")
	all := readSeries(rows, 1)
	c.text(588, 466, "start", "soft", fmt.Sprintf("pale: %d others", len(slices.DeleteFunc(slices.Clone(all), func(s series) bool { return s.look().label != "" }))))
	c.lines(all, x, y, 588, "%s, %.0f ns")
	return c.String()
}

// drawOverload plots goodput against offered load.
func drawOverload(rows [][]string, which, title string) string {
	c := newCanvas(860, 830, title)
	c.text(16, 46, "start", "soft", "A server of 1,000 calls a second: ten workers, 10 ms a call.")
	y := axis{0, 1100, 400, 80, false}
	c.drawOffered(readCase(rows, which, 1), y, steps(250, 1001), "%s, %.0f")
	c.text(16, 462, "start", "ink title", "How long calls take, p99 in milliseconds (lower is better)")
	ms := axis{40, 2000, 770, 490, true}
	c.drawOffered(readLatencies(rows, which, ms), ms, []float64{50, 100, 200, 500, 1000}, "%s, %.0f ms")
	return c.String()
}

// drawOffered plots figures against the calls offered to a server of 1,000 a second.
func (c *canvas) drawOffered(all []series, y axis, marks []float64, format string) {
	x := axis{500, 10_000, 60, 620, true}
	c.grid(x, y, marks...)
	bottom := y.at(y.low)
	c.ticks(x, bottom+20, "end", "%.0f", 500, 1000, 2000, 5000, 10_000)
	c.text(340, bottom+42, "middle", "soft", "calls offered, a second")
	c.line(x.at(1000), y.at(y.high), x.at(1000), bottom, "axis")
	c.text(x.at(1000)+6, y.at(y.high)+10, "start", "soft", "capacity")
	c.lines(all, x, y, 630, format)
}

// drawRealOverload plots what a real server serves of its capacity, against the load as a multiple of that.
func drawRealOverload(rows [][]string) string {
	all := readCase(rows, "computes, GOMAXPROCS=1", 100)
	c := newCanvas(860, 470, "Served within 200 ms, in percent of what is offered or the capacity (higher is better)")
	c.text(16, 46, "start", "soft", "A real HTTP server on one processor, handlers that compute for 10 ms in the mean. ±5 %.")
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
