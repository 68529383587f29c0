package main

import (
	"fmt"
	"io"
	"os"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// seriesKeys are the numbers of keys of the plot of time against keys.
var seriesKeys = []int{1, 10, 100, 1_000, 10_000, 100_000, 1_000_000}

// writeSeries measures a decision at growing numbers of keys, penstock beside each
// rival, and writes CSV that bench/plots draws.
func (b *bench) writeSeries(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	err = b.series(f, seriesKeys)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func (b *bench) series(w io.Writer, keys []int) error {
	fmt.Fprintln(w, "limiter,keys,ns")
	for _, n := range keys {
		for i, rival := range keyed(rivals) {
			timings, err := b.compareWith(measure.Thousands(n)+" keys", n, &rival, 1)
			if err != nil {
				return err
			}
			if i == 0 {
				for _, t := range timings[0][:2] { // the floor and penstock
					writePoint(w, t, n)
				}
			}
			writePoint(w, last(timings[0]), n)
		}
	}
	return nil
}

func writePoint(w io.Writer, t timing, keys int) {
	fmt.Fprintf(w, "%q,%d,%.1f\n", t.name, keys, t.nanos.Median)
}
