package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

type instructionRow struct {
	name string
	each float64
}

// instructionTargets are the targets of the scripts as multiples of INCR's instructions,
// in the order of ourShapes.
var instructionTargets = []float64{9.5, 10, 10.5}

// instructions counts the server's instructions for one decision with callgrind. Unlike
// a rate, the result is nearly the same on every machine, and it ignores caches and the
// kernel.
func (b *bench) instructions() error {
	shapes, ours, err := scriptShapes()
	if err != nil {
		return err
	}
	v, err := startUnderCallgrind()
	if err != nil {
		return err
	}
	defer v.stop()
	for _, s := range shapes {
		b.logf("instructions of %s", s.name)
		each, err := v.count(s, b.sizes.decisions)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.report.instructions = append(b.report.instructions, instructionRow{s.name, each})
	}
	incr := b.report.instructions[0].each
	for i, m := range b.report.instructions[1 : 1+ours] {
		b.report.Add(m.name+" script, server instructions",
			fmt.Sprintf("≤ %g× INCR's", instructionTargets[i]), m.each/incr <= instructionTargets[i],
			"%.1f× (%.0f to %.0f)", m.each/incr, m.each, incr)
	}
	return nil
}

// A simulated server runs under callgrind.
type simulated struct {
	*server
	dumps int
}

func startUnderCallgrind() (*simulated, error) {
	if _, err := exec.LookPath("callgrind_control"); err != nil {
		return nil, fmt.Errorf("valgrind is needed; on Debian: apt-get install valgrind: %w", err)
	}
	wrapper := []string{"valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=callgrind.out"}
	s, err := startServer(wrapper, "--hz", "1") // what it does besides is not to be counted
	if err != nil {
		return nil, err
	}
	return &simulated{server: s}, nil
}

// count returns the instructions of one decision, on existing keys. It subtracts two
// loads of different lengths, which removes the constant cost of a load: its
// connections.
func (v *simulated) count(s *shape, decisions int) (float64, error) {
	const keys = 200
	if err := s.load(v.server); err != nil {
		return 0, err
	}
	if _, err := fillFresh(v.server, s, keys); err != nil {
		return 0, err
	}
	short := load{connections: 4, pipeline: 16, requests: decisions, keys: keys}
	long := short
	long.requests *= 3
	var counts []float64
	for range 3 {
		less, err := v.under(s, short)
		if err != nil {
			return 0, err
		}
		more, err := v.under(s, long)
		if err != nil {
			return 0, err
		}
		counts = append(counts, float64(more-less)/float64(long.rounded()-short.rounded()))
	}
	return measure.SpreadOf(counts).Median, nil
}

// under returns the instructions that the server executes under a load.
func (v *simulated) under(s *shape, l load) (int, error) {
	before, err := v.stats()
	if err != nil {
		return 0, err
	}
	if err := v.control("-i", "on"); err != nil {
		return 0, err
	}
	if _, err := l.run(v.server, s); err != nil {
		return 0, err
	}
	if err := v.control("-i", "off"); err != nil {
		return 0, err
	}
	after, err := v.stats()
	if err != nil {
		return 0, err
	}
	if err := s.verifyGrants(after.since(before), l.rounded()); err != nil {
		return 0, err
	}
	return v.dump()
}

func (v *simulated) control(words ...string) error {
	pid := strconv.Itoa(v.PID())
	out, err := exec.Command("callgrind_control", append(words, pid)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("callgrind_control %s: %w: %s", words, err, out)
	}
	return nil
}

// dump makes callgrind write its counters to a file and reset them.
func (v *simulated) dump() (int, error) {
	if err := v.control("-d"); err != nil {
		return 0, err
	}
	v.dumps++
	paths, err := filepath.Glob(v.File("callgrind.out.*"))
	if err != nil {
		return 0, err
	}
	if len(paths) != v.dumps {
		return 0, fmt.Errorf("callgrind wrote %d files, want %d: %q", len(paths), v.dumps, paths)
	}
	return readTotal(v.File(fmt.Sprintf("callgrind.out.%d", v.dumps)))
}

// readTotal returns the number of instructions in a file of callgrind.
func readTotal(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if total, ok := strings.CutPrefix(lines.Text(), "totals: "); ok {
			return strconv.Atoi(strings.TrimSpace(total))
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("%s: no total", path))
}
