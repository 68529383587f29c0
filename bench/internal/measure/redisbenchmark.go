package measure

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strconv"
)

// BenchmarkRate returns how many requests a second redis-benchmark --csv says there
// were. The command is in front of that, quotes and commas included.
func BenchmarkRate(out []byte) (float64, error) {
	const columns = 8
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	last := lines[len(lines)-1]
	r := csv.NewReader(bytes.NewReader(last))
	r.LazyQuotes = true
	cells, err := r.Read()
	if err != nil || len(cells) < columns {
		return 0, fmt.Errorf("redis-benchmark says %q", last)
	}
	return strconv.ParseFloat(cells[len(cells)-columns+1], 64)
}
