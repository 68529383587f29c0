package rules

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
)

// Options configure how a [Source] is read and watched.
type Options struct {
	// MergeDomains lets several files add to one domain. Default: each domain
	// must be in one file.
	MergeDomains bool

	// AllowEmpty makes a directory without files a set without rules. Default: an error.
	AllowEmpty bool

	// AllowDuplicates reads files as envoyproxy/ratelimit does, with a warning: the first
	// YAML document of a file, and of fields of one name in a map the last. Default: an error.
	AllowDuplicates bool

	// StableTime is how long files must stay unchanged before they take effect, so
	// that a file that is written in pieces never takes effect by half. Default:
	// 1.25 s, which covers pauses of a second.
	StableTime time.Duration

	// Look is how often the times of the files are compared, to find changes.
	// Default: 200 ms.
	Look time.Duration

	// Poll is how often files are read although they look unchanged, because some
	// file systems do not record every change. Default: 10 s.
	Poll time.Duration
}

// A Source is a rule file, or a directory of rule files, that can be loaded and
// watched. It is safe for concurrent use.
type Source struct {
	path   string
	o      Options
	reload chan struct{}

	// Tests replace the file system.
	read func(path string) *reading
	look func(path string) [sha256.Size]byte

	mu        sync.Mutex
	stability stability
}

// NewSource returns the source at a path. It reads nothing yet.
func NewSource(path string, o *Options) *Source {
	s := &Source{path: path, reload: make(chan struct{}, 1), read: read, look: look}
	s.o = *cmp.Or(o, &Options{})
	s.o.StableTime = defaults.Or(s.o.StableTime, 1250*time.Millisecond)
	s.o.Look = defaults.Or(s.o.Look, 200*time.Millisecond)
	s.o.Poll = defaults.Or(s.o.Poll, 10*time.Second)
	s.stability.time = s.o.StableTime
	return s
}

// String returns the path.
func (s *Source) String() string { return s.path }

// Load reads and parses the files once they are stable: at once if they are old enough
// or have checksums, otherwise when two readings agree. If the content of a file is
// wrong, the error is [Errors]; if files are not stable within 10 s, it is
// [*UnstableError].
func (s *Source) Load(ctx context.Context) (*Set, error) {
	for {
		r := s.read(s.path)
		wait, err := s.add(r)
		if err != nil {
			return nil, err
		}
		if wait == 0 {
			s.use(r)
			return s.parse(r)
		}
		if err := monotime.Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// add returns how long to wait before the next reading, 0 if this one is stable. The
// error is not nil if it is time to report that the files are not stable.
func (s *Source) add(r *reading) (wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stability.add(r) {
		return 0, nil
	}
	return s.stability.wait(r), s.stability.overdue(s.path, r)
}

// use remembers a reading that takes effect, and reports whether its content is new.
func (s *Source) use(r *reading) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.stability.used == nil || s.stability.used.content != r.content
	s.stability.used = &r.version
	return changed
}

func (s *Source) parse(r *reading) (*Set, error) {
	if r.err != nil && !(s.o.AllowEmpty && errors.Is(r.err, errNoFiles)) {
		return nil, r.err
	}
	return parse(r.files, &s.o)
}
