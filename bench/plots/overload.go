package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// overloadTitles are the pictures of goodput by offered load, by case.
var overloadTitles = map[string]string{
	"busy": "Served within 100 ms, a second (higher is better)",
	"idle": "The same, when the workers wait for a database",
}

// drawOverload plots goodput against offered load, which is on a logarithmic axis.
func drawOverload(rows [][]string, which string) (string, error) {
	series, order, err := overloadSeries(rows, which)
	if err != nil {
		return "", err
	}
	c := newCanvas(860, 470, overloadTitles[which])
	c.text(16, 46, "start", "soft", "A server of 1,000 calls a second: ten workers, 10 ms a call.")
	x := func(offered float64) float64 { return 60 + 560*math.Log10(offered/500)/math.Log10(20) }
	y := func(good float64) float64 { return 400 - 320*good/1100 }
	for good := 0.0; good <= 1000; good += 250 {
		c.line(60, y(good), 620, y(good), "grid")
		c.text(52, y(good)+4, "end", "soft", fmt.Sprintf("%.0f", good))
	}
	for _, offered := range []float64{500, 1000, 2000, 5000, 10000} {
		anchor := "middle"
		if offered == 10000 { // there are labels beside it
			anchor = "end"
		}
		c.text(x(offered), 420, anchor, "soft", fmt.Sprintf("%.0f", offered))
	}
	c.text(340, 442, "middle", "soft", "calls offered, a second")
	c.line(x(1000), y(1100), x(1000), y(0), "axis")
	c.text(x(1000)+6, y(1100)+10, "start", "soft", "capacity")
	var labels []label
	for _, name := range order {
		var points []xy
		for _, p := range series[name] {
			points = append(points, xy{x(p.x), y(p.y)})
		}
		c.path(points, classOf(name))
		labels = append(labels, label{y: points[len(points)-1].y, text: fmt.Sprintf("%s, %.0f", name, series[name][len(points)-1].y), class: textClassOf(name)})
	}
	for _, l := range spreadLabels(labels) {
		c.text(630, l.y+4, "start", l.class, l.text)
	}
	return c.String(), nil
}

// overloadSeries returns goodput by offered load of each limiter. Penstock is the last, and so
// on top.
func overloadSeries(rows [][]string, which string) (series map[string][]xy, order []string, err error) {
	series = map[string][]xy{}
	for _, row := range rows {
		if row[0] != which {
			continue
		}
		offered, err1 := number(row[2])
		good, err2 := number(row[3])
		if err := cmp.Or(err1, err2); err != nil {
			return nil, nil, err
		}
		if series[row[1]] == nil {
			order = append(order, row[1])
		}
		series[row[1]] = append(series[row[1]], xy{offered, good})
	}
	if len(order) == 0 {
		return nil, nil, fmt.Errorf("results/overload.csv has no case %q", which)
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return series, order, nil
}
