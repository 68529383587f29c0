package replay

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"thousands": Thousands, "share": share, "denials": func(d Denials, of int64) string { return d.text(of) },
	"bars": bars, "peak": peak, "curve": curve, "column": column, "widest": widest, "last": func(all []Point) Point { return all[len(all)-1] },
	"percent": func(f float64) string { return fmt.Sprintf("%.4g%%", 100*f) },
	"time":    func(k Key) string { return k.First.Format(timeFormat) + " to " + k.Last.Format(timeFormat) },
}).Parse(page))

// HTML writes the report as one page that needs no network. The template escapes everything that comes from
// logs and rules.
func (r *Report) HTML(w io.Writer) error { return pageTemplate.Execute(w, r) }

// The size of pictures, in pixels.
const (
	pictureWidth  = 640
	pictureHeight = 80
)

// peak returns the most requests of a column.
func peak(timeline []Bucket) (most int64) {
	for _, b := range timeline {
		most = max(most, b.Requests)
	}
	return most
}

// widest returns the largest burst.
func widest(points []Point) (most int64) {
	for _, p := range points {
		most = max(most, p.Burst)
	}
	return most
}

// bars returns the outlines of the requests and of the denials over time.
func bars(timeline []Bucket) (paths [2]string) {
	most := max(peak(timeline), 1)
	width := float64(pictureWidth) / float64(max(len(timeline), 1))
	var requests, denied strings.Builder
	for i, b := range timeline {
		bar(&requests, float64(i)*width, width, float64(b.Requests)/float64(most))
		bar(&denied, float64(i)*width, width, float64(b.Denied)/float64(most))
	}
	return [2]string{requests.String(), denied.String()}
}

func bar(b *strings.Builder, x, width, height float64) {
	if height > 0 {
		fmt.Fprintf(b, "M%.1f %dv-%.1fh%.1fV%dz", x, pictureHeight, height*pictureHeight, width*0.9, pictureHeight)
	}
}

// curve returns the line of bursts over rates.
func curve(points []Point) string {
	most := max(widest(points), 1)
	var b strings.Builder
	for _, p := range points {
		fmt.Fprintf(&b, "%s,%.1f ", column(points, p.Limit), pictureHeight*(1-float64(p.Burst)/float64(most)))
	}
	return b.String()
}

// column returns where a limit is on the line.
func column(points []Point, limit string) string {
	i := slices.IndexFunc(points, func(p Point) bool { return p.Limit == limit })
	return fmt.Sprintf("%.1f", float64(i)*pictureWidth/float64(max(len(points)-1, 1)))
}
