package rules

import (
	"cmp"
	"context"
	"time"
)

// Watch calls use with a new set whenever the files have changed since they were
// loaded last and are stable, and on [Source.Reload]. If the new files are wrong or
// never stable, it calls use with the error, and the caller should keep its current set.
// Calls of use do not overlap. Watch returns only when the context ends.
func (s *Source) Watch(ctx context.Context, use Use) {
	reload := false
	for ctx.Err() == nil {
		r := s.read(s.path)
		wait, late := s.add(r)
		switch {
		case late != nil:
			_ = use(nil, late) // the caller reports it
		case wait == 0 && (s.use(r) || reload):
			_ = use(s.parse(r))
			reload = false
		}
		reload = s.waitForChange(ctx, r, cmp.Or(wait, s.o.Poll)) || reload
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

// waitForChange returns when the files should be read again: they look different from when they
// were read, the given time has passed, or Reload was called, for which it returns true. It also
// returns when the context has ended.
//
// It looks at the files rather than wait for notifications of the file system, which network file
// systems do not send, and which would have to cover every link and directory on the path.
func (s *Source) waitForChange(ctx context.Context, r *reading, most time.Duration) (reload bool) {
	tick := time.NewTicker(s.o.Look)
	defer tick.Stop()
	again := time.After(most)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.reload:
			return true
		case <-again:
			return false
		case <-tick.C:
			if s.look(s.path) != r.scan {
				return false
			}
		}
	}
}
