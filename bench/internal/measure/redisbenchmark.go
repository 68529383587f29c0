package measure

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strconv"
)

// BenchmarkRate returns the requests a second in the output of redis-benchmark --csv.
// The command is the first column, with unescaped quotes and commas.
func BenchmarkRate(out []byte) (float64, error) {
	const columns = 8
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	last := lines[len(lines)-1]
	r := csv.NewReader(bytes.NewReader(last))
	r.LazyQuotes = true
	cells, err := r.Read()
	if err != nil || len(cells) < columns {
		return 0, fmt.Errorf("unexpected output of redis-benchmark: %q", last)
	}
	return strconv.ParseFloat(cells[len(cells)-columns+1], 64)
}
