package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// drawKeys plots the time of a decision against the number of keys, both on
// logarithmic axes.
func drawKeys(rows [][]string) (string, error) {
	all, err := readSeries(rows)
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
	c.lines(all, x, y, 588, ", %.0f ns")
	return c.String(), nil
}

// A series is the figures of one limiter.
type series struct {
	name   string
	points []xy
}

// readSeries returns the series of rows of a name and two figures. Penstock is the last, and so drawn
// on top.
func readSeries(rows [][]string) (all []series, err error) {
	for _, row := range rows {
		v, err := numbers(row[1:]...)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(all, func(s series) bool { return s.name == row[0] })
		if i < 0 {
			i, all = len(all), append(all, series{name: row[0]})
		}
		all[i].points = append(all[i].points, xy{v[0], v[1]})
	}
	slices.SortStableFunc(all, func(a, b series) int { return cmp.Compare(rank(a.name), rank(b.name)) })
	return all, nil
}

// lines draws series between two axes, with labels at the right edge that have the last figure.
func (c *canvas) lines(all []series, x, y func(float64) float64, edge float64, figure string) {
	var labels []label
	for _, s := range all {
		var points []xy
		for _, p := range s.points {
			points = append(points, xy{x(p.x), y(p.y)})
		}
		c.path(points, classOf(s.name))
		last := s.points[len(s.points)-1]
		labels = append(labels, label{y: y(last.y), text: s.name + fmt.Sprintf(figure, last.y), class: textClassOf(s.name)})
	}
	for _, l := range spreadLabels(labels) {
		c.text(edge, l.y+4, "start", l.class, l.text)
	}
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

// overloadTitles are the pictures of goodput by offered load, by case.
var overloadTitles = map[string]string{
	"busy": "Served within 100 ms, a second (higher is better)",
	"idle": "The same, when the workers wait for a database",
}

// drawOverload plots goodput against offered load, which is on a logarithmic axis.
func drawOverload(rows [][]string, which string) (string, error) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(row []string) bool { return row[0] != which })
	for i := range rows {
		rows[i] = rows[i][1:]
	}
	all, err := readSeries(rows)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("there is no case %q", which)
	}
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
	c.lines(all, x, y, 630, ", %.0f")
	return c.String(), nil
}

// drawOutage plots what was admitted against the bound while Redis was down.
func drawOutage(rows [][]string) (string, error) {
	var admitted, bound []xy
	from, to := -1.0, -1.0
	for _, row := range rows {
		v, err := numbers(row[:3]...)
		if err != nil {
			return "", err
		}
		at := v[0]
		admitted, bound = append(admitted, xy{at, v[1]}), append(bound, xy{at, v[2]})
		if row[3] == "1" {
			if from < 0 {
				from = at
			}
			to = at
		}
	}
	if from < 0 {
		return "", errors.New("there is no outage")
	}
	return drawTimeline(admitted, bound, from, to), nil
}

func drawTimeline(admitted, bound []xy, from, to float64) string {
	c := newCanvas(820, 400, "Units admitted while Redis is killed and comes back empty")
	seconds, most := bound[len(bound)-1].x, bound[len(bound)-1].y*1.05
	x := func(s float64) float64 { return 60 + 620*s/seconds }
	y := func(n float64) float64 { return 350 - 300*n/most }
	c.rect(x(from), 50, x(to)-x(from), 300, "down")
	c.text((x(from)+x(to))/2, 336, "middle", "boundText", "Redis is down")
	for n := 0.0; n < most; n += 500 {
		c.line(60, y(n), 680, y(n), "grid")
		c.text(52, y(n)+4, "end", "soft", fmt.Sprintf("%.0f", n))
	}
	for s := 0.0; s <= seconds; s += 2 {
		c.text(x(s), 370, "middle", "soft", fmt.Sprintf("%.0f s", s))
	}
	c.text(16, 390, "start", "soft", "Two processes, one key under 100 a second, 500 requests a second offered. No caller sees an error.")
	for _, line := range []struct {
		points []xy
		class  string
	}{{bound, "bound"}, {admitted, "ours"}} {
		var points []xy
		for _, p := range line.points {
			points = append(points, xy{x(p.x), y(p.y)})
		}
		c.path(points, line.class)
	}
	ends := spreadLabels([]label{
		{y(bound[len(bound)-1].y), "bound", "boundText"},
		{y(admitted[len(admitted)-1].y), "admitted", "oursText"},
	})
	for _, l := range ends {
		c.text(688, l.y+4, "start", l.class, l.text)
	}
	return c.String()
}
