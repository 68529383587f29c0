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
	"os"
	"path/filepath"
	"strconv"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func main() {
	r := harness.New("plots", os.Stdout, os.Stderr)
	results := r.Flags.String("results", "results", "the folder of the results")
	images := r.Flags.String("images", "../docs/images", "the folder of the pictures")
	r.Prepare = func() {
		r.Done = true // there is no report
		harness.Check(os.MkdirAll(filepath.Join(*images, chineseFolder), 0o755))
		for _, p := range pictures {
			if !p.measured(*results) {
				continue
			}
			text := p.text(*results)
			harness.Check(os.WriteFile(filepath.Join(*images, p.name), []byte(text), 0o644))
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

// measured reports whether there are results to draw from: those of real servers need a quiet machine.
func (p picture) measured(results string) bool {
	_, err := os.Stat(filepath.Join(results, p.file))
	return err == nil
}

// text returns the text of the picture.
func (p picture) text(results string) string {
	if p.file == "" {
		return p.draw(nil)
	}
	f := harness.Must(os.Open(filepath.Join(results, p.file)))
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
