// Command plots draws the pictures of the documents from the results of benchmarks
// and from the store itself: docs/images/*.svg.
//
//	go run ./memory -series results/keys.csv
//	go run ./outage -csv results/outage.csv
//	go run ./overload -run offered -csv results/overload.csv
//	go run ./plots
package main

import (
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

func main() {
	results := flag.String("results", "results", "the folder of the results")
	images := flag.String("images", "../docs/images", "the folder of the pictures")
	flag.Parse()
	if err := draw(*results, *images); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

// draw writes all pictures into a folder.
func draw(results, images string) error {
	all, err := pictures(results)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(images, 0o755); err != nil {
		return err
	}
	for name, svg := range all {
		if err := os.WriteFile(filepath.Join(images, name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sources are the pictures that are drawn from results, and their files.
var sources = []struct {
	picture, file string
	columns       int
	draw          func(rows [][]string) (string, error)
}{
	{"keys.svg", "keys.csv", 3, drawKeys},
	{"outage.svg", "outage.csv", 4, drawOutage},
	{"overload-busy.svg", "overload.csv", 4, func(rows [][]string) (string, error) { return drawOverload(rows, "busy") }},
	{"overload-idle.svg", "overload.csv", 4, func(rows [][]string) (string, error) { return drawOverload(rows, "idle") }},
}

// pictures returns the text of each file.
func pictures(results string) (map[string]string, error) {
	edge, err := drawAlgorithms()
	if err != nil {
		return nil, err
	}
	all := map[string]string{"algorithms.svg": edge}
	for _, s := range sources {
		rows, err := readCSV(filepath.Join(results, s.file), s.columns)
		if err != nil {
			return nil, err
		}
		if all[s.picture], err = s.draw(rows); err != nil {
			return nil, fmt.Errorf("%s: %w", s.file, err)
		}
	}
	return all, nil
}

// readCSV returns the rows below the heading.
func readCSV(file string, columns int) ([][]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	r := csv.NewReader(f)
	r.FieldsPerRecord = columns
	rows, err := r.ReadAll()
	if err != nil || len(rows) < 2 {
		return nil, fmt.Errorf("%s: %d rows: %w", file, len(rows), err)
	}
	return rows[1:], nil
}

// numbers parses cells.
func numbers(cells ...string) ([]float64, error) {
	values := make([]float64, len(cells))
	for i, c := range cells {
		var err error
		if values[i], err = strconv.ParseFloat(c, 64); err != nil {
			return nil, err
		}
	}
	return values, nil
}
