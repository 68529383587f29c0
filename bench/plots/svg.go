package main

import (
	"fmt"
	"html"
	"strings"
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
