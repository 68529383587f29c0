package main

import (
	"cmp"
	"errors"
	"fmt"
)

// drawOutage plots what was admitted against the bound while Redis was down.
func drawOutage(rows [][]string) (string, error) {
	var admitted, bound []xy
	from, to := -1.0, -1.0
	for _, row := range rows {
		at, err1 := number(row[0])
		n, err2 := number(row[1])
		limit, err3 := number(row[2])
		if err := cmp.Or(err1, err2, err3); err != nil {
			return "", err
		}
		admitted, bound = append(admitted, xy{at, n}), append(bound, xy{at, limit})
		if row[3] == "1" {
			if from < 0 {
				from = at
			}
			to = at
		}
	}
	if from < 0 {
		return "", errors.New("results/outage.csv has no outage")
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
