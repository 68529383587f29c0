package rules

import (
	"context"
	"maps"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch calls loaded with a new set whenever the files have changed since they were
// loaded last and are stable, and on [Source.Reload]. If the new files are wrong or
// never stable, it calls loaded with the error, and the caller should keep its current set.
// Calls of loaded do not overlap. Watch returns only when the context ends.
func (s *Source) Watch(ctx context.Context, loaded func(*Set, error)) {
	poll := time.NewTicker(s.o.Poll)
	defer poll.Stop()
	reload := false
	for ctx.Err() == nil {
		// The watcher starts before the read, so that no change between them is
		// missed.
		w := s.watch(s.path)
		r := s.read(s.path)
		wait, late := s.add(r)
		switch {
		case late != nil:
			loaded(nil, late)
		case wait == 0 && (s.use(r) || reload):
			loaded(s.parse(r))
			reload = false
		}
		if s.waitForChange(ctx, w, poll.C, wait) {
			reload = true
		}
		w.close()
	}
}

// Reload makes Watch load the rules as soon as they are stable, whether or not they
// have changed.
func (s *Source) Reload() {
	select {
	case s.reload <- struct{}{}:
	default: // a reload is already pending
	}
}

// waitForChange returns when the files should be read again, which is after a given time
// unless that is 0, or the context has ended. It returns true if Reload was called. After a
// change it waits until nothing has changed for the debounce time or, if changes do not stop,
// for twenty times as long.
func (s *Source) waitForChange(ctx context.Context, w *watcher, poll <-chan time.Time, wait time.Duration) (reload bool) {
	events, errors := w.events, w.errors
	var again, quiet <-chan time.Time
	if wait > 0 {
		again = time.After(wait)
	}
	changed := func() {
		if quiet == nil {
			poll, errors, again = nil, nil, time.After(20*s.o.Debounce)
		}
		quiet = time.After(s.o.Debounce)
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.reload:
			return true
		case <-poll:
			return false
		case <-again:
			return false
		case <-quiet:
			return false
		case e, open := <-events:
			if !open {
				events = nil
			}
			if !open || w.scan.affects(e.Name) {
				changed()
			}
		case <-errors:
			changed()
		}
	}
}

// A watcher receives change notifications for the directories of a scan. Where the
// operating system provides none, it receives nothing, and polling finds the change
// later.
type watcher struct {
	scan   *scan
	fs     *fsnotify.Watcher // nil if the system has none available
	events <-chan fsnotify.Event
	errors <-chan error
}

// newWatcher watches every directory in which a change affects the rules at a path.
// Watch makes a new one after each change: directories may have been moved, removed and
// created again, and a fresh scan is the surest way to watch the right ones.
func newWatcher(path string) *watcher {
	w := &watcher{scan: scanPath(path)}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return w
	}
	w.fs, w.events, w.errors = fs, fs.Events, fs.Errors
	const tries = 5
	for range tries {
		for dir := range w.scan.dirs {
			_ = fs.Add(dir)
		}
		// A second scan finds what was created before its directory was watched.
		again := scanPath(path)
		if maps.EqualFunc(w.scan.dirs, again.dirs, maps.Equal) {
			break
		}
		w.scan = again
	}
	return w
}

func (w *watcher) close() {
	if w.fs != nil {
		_ = w.fs.Close() // an error here has no consequence
	}
}
