package rules

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"
)

// Options say how a [Source] is read and watched.
type Options struct {
	// MergeDomains lets several files add to one domain. Default: every domain
	// is in one file.
	MergeDomains bool

	// Debounce is how long files must have been left alone before they are read
	// again, so that a change in several steps is seen as one. Default: 100 ms.
	Debounce time.Duration

	// Poll is how often files are read although nothing was heard of them, for
	// not every file system tells. Default: 10 s.
	Poll time.Duration
}

// A Source is where rules come from: a file, or a folder of files. It is safe for
// concurrent use.
type Source struct {
	path   string
	o      Options
	reload chan struct{}

	mu   sync.Mutex
	last [sha256.Size]byte // of what was read last, or why it could not be
}

// NewSource returns the source at a path. Nothing is read yet.
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

// Load makes a set of the files as they are now. If anything is wrong with what
// they say, the error is [Errors].
func (s *Source) Load() (*Set, error) {
	files, err := readFiles(s.path)
	s.isNew(files, err)
	return s.parse(files, err)
}

// Reload makes Watch load the rules now, whether or not they have changed.
func (s *Source) Reload() {
	select {
	case s.reload <- struct{}{}:
	default: // it will anyway
	}
}

// Watch calls loaded with a new set whenever the files have changed since they were
// loaded last, and on [Source.Reload]; or with an error if the new files are wrong, and
// whoever has a set should keep it. It returns when the context ends, and
// only then. Calls of loaded follow one another.
func (s *Source) Watch(ctx context.Context, loaded func(*Set, error)) {
	poll := time.NewTicker(s.o.Poll)
	defer poll.Stop()
	reload := false
	for ctx.Err() == nil {
		// Listening begins before reading, so that nothing is missed between.
		ears := listen(s.path)
		files, err := readFiles(s.path)
		if s.isNew(files, err) || reload {
			loaded(s.parse(files, err))
		}
		reload = s.wait(ctx, ears, poll.C)
		ears.close()
	}
}

func (s *Source) parse(files []File, err error) (*Set, error) {
	if err != nil {
		return nil, err
	}
	return parse(files, s.o.MergeDomains)
}

// isNew remembers what was read, and reports whether it differs from before.
func (s *Source) isNew(files []File, err error) bool {
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

// wait returns when the files should be read again, or the context has ended, and
// reports whether that was asked for.
func (s *Source) wait(ctx context.Context, ears *ears, poll <-chan time.Time) (reload bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.reload:
			return true
		case <-poll:
			return false
		case e, open := <-ears.events:
			if !open || ears.heard.concerns(e.Name) {
				return s.settle(ctx, ears)
			}
		case <-ears.errors:
			return s.settle(ctx, ears)
		}
	}
}

// settle returns when nothing has happened for a while. A folder in which
// something always happens is waited for twenty times as long, and no longer.
func (s *Source) settle(ctx context.Context, ears *ears) (reload bool) {
	longest := time.NewTimer(20 * s.o.Debounce)
	defer longest.Stop()
	quiet := time.NewTimer(s.o.Debounce)
	defer quiet.Stop()
	events := ears.events
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.reload:
			return true
		case <-longest.C:
			return false
		case <-quiet.C:
			return false
		case e, open := <-events:
			if !open {
				events = nil
			} else if ears.heard.concerns(e.Name) {
				quiet.Reset(s.o.Debounce)
			}
		}
	}
}
