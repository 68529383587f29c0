package history

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
)

// ErrBadHistory means that saved history cannot be read.
var ErrBadHistory = errors.New("history: not a saved history")

// saved is a history in a file. What the counters were is not part of it.
type saved struct {
	Width       int
	Second      int64
	Sum, Others rings
	Named       map[string]rings
}

// Save writes the history.
func (h *History) Save(w io.Writer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := saved{Width: h.width, Second: h.second, Sum: h.sum, Others: h.others, Named: map[string]rings{}}
	for name, c := range h.named {
		if c.own != nil {
			s.Named[name] = *c.own
		}
	}
	return gob.NewEncoder(w).Encode(s)
}

// A Reader is what history is loaded from. What follows the history stays in it.
type Reader interface {
	io.Reader
	io.ByteReader
}

// Load replaces an empty history by a saved one. If that is invalid, it returns
// [ErrBadHistory] and the history stays empty.
func (h *History) Load(r Reader) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var s saved
	if err := gob.NewDecoder(r).Decode(&s); err != nil {
		return fmt.Errorf("%w: %w", ErrBadHistory, err)
	}
	if !s.fits(h.width) {
		return fmt.Errorf("%w: %d series of %d columns, want %d columns", ErrBadHistory, len(s.Named), s.Width, h.width)
	}
	h.second, h.sum, h.others = s.Second, s.Sum, s.Others
	for name, own := range s.Named {
		h.named[name] = &counters{own: &own}
	}
	h.owners = len(s.Named)
	return nil
}

const maxSecond = 1 << 40

// fits reports whether the saved history has the shape of one with that many columns.
func (s *saved) fits(width int) bool {
	ok := s.Width == width && len(s.Named) <= MaxSeries && s.Second >= 0 && s.Second < maxSecond
	for _, r := range s.Named {
		ok = ok && r.fits(width)
	}
	return ok && s.Sum.fits(width) && s.Others.fits(width)
}

func (r *rings) fits(width int) bool {
	for i := range r {
		if len(r[i]) != int(slots[i])*width {
			return false
		}
	}
	return true
}
