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

// pictures returns the text of each file.
func pictures(results string) (map[string]string, error) {
	keys, err := readCSV(filepath.Join(results, "keys.csv"), 3)
	if err != nil {
		return nil, err
	}
	outage, err := readCSV(filepath.Join(results, "outage.csv"), 4)
	if err != nil {
		return nil, err
	}
	byKeys, err := drawKeys(keys)
	if err != nil {
		return nil, err
	}
	byTime, err := drawOutage(outage)
	if err != nil {
		return nil, err
	}
	edge, err := drawAlgorithms()
	if err != nil {
		return nil, err
	}
	all := map[string]string{"keys.svg": byKeys, "outage.svg": byTime, "algorithms.svg": edge}
	offered, err := readCSV(filepath.Join(results, "overload.csv"), 4)
	if err != nil {
		return nil, err
	}
	for which := range overloadTitles {
		if all["overload-"+which+".svg"], err = drawOverload(offered, which); err != nil {
			return nil, err
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

func number(text string) (float64, error) { return strconv.ParseFloat(text, 64) }
