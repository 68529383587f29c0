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
	"encoding/csv"
	"fmt"
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
	{"overload-busy.svg", "overload.csv", func(rows [][]string) string { return drawOverload(rows, "busy") }},
	{"overload-idle.svg", "overload.csv", func(rows [][]string) string { return drawOverload(rows, "idle") }},
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
