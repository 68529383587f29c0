package history

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// A history in a file is its width, the second, and for each series its name and the numbers
// of its rings. Numbers are varints, and zeros are counted: 0 3 is three of them. The series
// of the sum and of others come first.

// ErrBadHistory means that saved history cannot be read.
var ErrBadHistory = errors.New("history: not a saved history")

const maxName = 64 << 10

// Save writes the history. What the counters were is not part of it.
func (h *History) Save(w io.Writer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := encoder{w: bufio.NewWriter(w)}
	e.number(uint64(h.width))
	e.number(uint64(h.second))
	e.number(uint64(h.owners))
	e.rings(&h.sum)
	e.rings(&h.others)
	for _, name := range slices.Sorted(maps.Keys(h.named)) {
		if c := h.named[name]; c.own != nil {
			e.number(uint64(len(name)))
			_, _ = e.w.WriteString(name)
			e.rings(c.own)
		}
	}
	return e.w.Flush()
}

// An encoder writes numbers. Its writer keeps the first error.
type encoder struct {
	w     *bufio.Writer
	bytes [binary.MaxVarintLen64]byte
}

func (e *encoder) number(n uint64) {
	_, _ = e.w.Write(e.bytes[:binary.PutUvarint(e.bytes[:], n)])
}

func (e *encoder) rings(r *rings) {
	for _, ring := range r {
		for i := 0; i < len(ring); {
			e.number(uint64(ring[i]))
			zeros := 0
			for i+zeros < len(ring) && ring[i+zeros] == 0 {
				zeros++
			}
			if zeros > 0 {
				e.number(uint64(zeros))
			}
			i += max(zeros, 1)
		}
	}
}

// A Reader is what history is loaded from.
type Reader interface {
	io.Reader
	io.ByteReader
}

// Load replaces an empty history by a saved one. If that is invalid, it returns
// [ErrBadHistory] and the history stays empty.
func (h *History) Load(r Reader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := decoder{r: r}
	loaded := New(h.width)
	if width := d.number(1 << 20); d.err == nil && width != uint64(h.width) {
		return fmt.Errorf("%w: %d columns, want %d", ErrBadHistory, width, h.width)
	}
	loaded.second = int64(d.number(1 << 40))
	series := d.number(MaxSeries)
	d.rings(&loaded.sum)
	d.rings(&loaded.others)
	for range series {
		name := make([]byte, d.number(maxName))
		if d.err == nil {
			_, d.err = io.ReadFull(r, name)
		}
		own := newRings(h.width)
		d.rings(&own)
		loaded.named[string(name)] = &counters{own: &own}
		loaded.owners = len(loaded.named)
		if d.err != nil {
			break
		}
	}
	if d.err != nil {
		return fmt.Errorf("%w: %w", ErrBadHistory, d.err)
	}
	h.second, h.named, h.owners, h.sum, h.others = loaded.second, loaded.named, loaded.owners, loaded.sum, loaded.others
	return nil
}

// A decoder reads numbers until the first error.
type decoder struct {
	r   Reader
	err error
}

func (d *decoder) number(most uint64) uint64 {
	if d.err != nil {
		return 0
	}
	n, err := binary.ReadUvarint(d.r)
	switch {
	case err != nil:
		d.err = err
	case n > most:
		d.err = fmt.Errorf("%d is more than %d", n, most)
	default:
		return n
	}
	return 0
}

func (d *decoder) rings(r *rings) {
	for _, ring := range r {
		for i := 0; i < len(ring) && d.err == nil; {
			n := d.number(1<<32 - 1)
			if n != 0 {
				ring[i] = uint32(n)
				i++
				continue
			}
			zeros := int(d.number(uint64(len(ring) - i)))
			if zeros == 0 && d.err == nil {
				d.err = errors.New("a run of no zeros")
			}
			i += zeros
		}
	}
}
