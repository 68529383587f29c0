package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// drawKeys plots the time of a decision against the number of keys, both on
// logarithmic axes.
func drawKeys(rows [][]string) (string, error) {
	series, order, err := keySeries(rows)
	if err != nil {
		return "", err
	}
	c := newCanvas(860, 470, "Nanoseconds a decision, by number of keys (lower is better)")
	x := func(keys float64) float64 { return 60 + 520*math.Log10(keys)/6 }
	y := func(ns float64) float64 { return 425 - 360*math.Log10(ns/20)/math.Log10(5000.0/20) }
	for _, ns := range []float64{20, 50, 100, 200, 500, 1000, 2000, 5000} {
		c.line(60, y(ns), 580, y(ns), "grid")
		c.text(52, y(ns)+4, "end", "soft", fmt.Sprintf("%.0f", ns))
	}
	for i, label := range []string{"1", "10", "100", "1,000", "10,000", "100,000", "1 million"} {
		c.text(x(math.Pow10(i)), 447, "middle", "soft", label)
	}
	var labels []label
	for _, name := range order {
		var points []xy
		for _, p := range series[name] {
			points = append(points, xy{x(p.x), y(p.y)})
		}
		c.path(points, classOf(name))
		last := points[len(points)-1]
		labels = append(labels, label{y: last.y, text: fmt.Sprintf("%s, %.0f ns", name, series[name][len(points)-1].y), class: textClassOf(name)})
	}
	for _, l := range spreadLabels(labels) {
		c.text(588, l.y+4, "start", l.class, l.text)
	}
	return c.String(), nil
}

func keySeries(rows [][]string) (series map[string][]xy, order []string, err error) {
	series = map[string][]xy{}
	for _, row := range rows {
		keys, err1 := number(row[1])
		ns, err2 := number(row[2])
		if err := cmp.Or(err1, err2); err != nil {
			return nil, nil, err
		}
		if series[row[0]] == nil {
			order = append(order, row[0])
		}
		series[row[0]] = append(series[row[0]], xy{keys, ns})
	}
	// Penstock is drawn last, on top.
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return series, order, nil
}

func rank(name string) int {
	switch name {
	case "penstock":
		return 2
	case "floor":
		return 1
	}
	return 0
}

func classOf(name string) string { return []string{"rival", "floor", "ours"}[rank(name)] }

func textClassOf(name string) string { return []string{"soft", "floorText", "oursText"}[rank(name)] }

type label struct {
	y           float64
	text, class string
}

// spreadLabels moves labels apart so that none covers another.
func spreadLabels(labels []label) []label {
	const height = 16
	slices.SortFunc(labels, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	for i := 1; i < len(labels); i++ {
		labels[i].y = max(labels[i].y, labels[i-1].y+height)
	}
	return labels
}
