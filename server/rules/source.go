package rules

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"
)

// Options configure how a [Source] is read and watched.
type Options struct {
	// MergeDomains lets several files add to one domain. Default: each domain
	// must be in one file.
	MergeDomains bool

	// Debounce is how long files must stay unchanged before they are read
	// again, so that a change in several steps is loaded once. Default: 100 ms.
	Debounce time.Duration

	// Poll is how often files are read without a change notification, because
	// some file systems do not send any. Default: 10 s.
	Poll time.Duration
}

// A Source is a rule file, or a directory of rule files, that can be loaded and
// watched. It is safe for concurrent use.
type Source struct {
	path   string
	o      Options
	reload chan struct{}

	mu   sync.Mutex
	last [sha256.Size]byte // hash of the files read last, or of the read error
}

// NewSource returns the source at a path. It reads nothing yet.
func NewSource(path string, o *Options) *Source {
	s := &Source{path: path, reload: make(chan struct{}, 1)}
	if o != nil {
		s.o = *o
	}
	if s.o.Debounce <= 0 {
		s.o.Debounce = 100 * time.Millisecond
	}
	if s.o.Poll <= 0 {
		s.o.Poll = 10 * time.Second
	}
	return s
}

// Load reads and parses the files as they are now. If the content of a file is wrong,
// the error is [Errors].
func (s *Source) Load() (*Set, error) {
	files, err := readFiles(s.path)
	s.changed(files, err)
	return s.parse(files, err)
}

func (s *Source) parse(files []File, err error) (*Set, error) {
	if err != nil {
		return nil, err
	}
	return parse(files, s.o.MergeDomains)
}

// changed remembers the files or the error that a read returned, and reports whether
// they differ from those of the read before.
func (s *Source) changed(files []File, err error) bool {
	h := sha256.New()
	for _, f := range files {
		h.Write(fmt.Appendf(nil, "%d %s %d ", len(f.Name), f.Name, len(f.Text)))
		h.Write(f.Text)
	}
	if err != nil {
		h.Write([]byte(err.Error()))
	}
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := sum != s.last
	s.last = sum
	return changed
}
