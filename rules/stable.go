package rules

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// How long files may take to become stable before that is reported, and how often it is
// reported again.
const (
	maxUnstable      = 10 * time.Second
	unstableInterval = time.Hour
)

// An UnstableError means that rule files cannot take effect, because they keep changing
// or because one of them is incomplete.
type UnstableError struct {
	Path   string
	For    time.Duration // since the first reading of such files
	Reason error
}

// Error returns the path, the time and the reason.
func (e *UnstableError) Error() string {
	return fmt.Sprintf("%s: rule files were not stable after %v: %v", e.Path, e.For.Round(time.Second), e.Reason)
}

// Unwrap returns the reason.
func (e *UnstableError) Unwrap() error { return e.Reason }

var errKeepChanging = errors.New("they keep changing")

// A stability decides which readings take effect: a prefix of a rule file is mostly a
// valid rule file, so a file must not be used while it is being written.
type stability struct {
	time time.Duration // for which files must not change

	used      *version // what took effect last, nil at the start
	candidate *reading // the first of the readings since which nothing has changed

	since    time.Time // of the first reading that was not stable, or zero
	reportAt time.Time // when that is to be reported
}

// add reports whether a reading takes effect.
func (s *stability) add(r *reading) bool {
	if r.unfit == nil && (s.stableAlone(r) || s.confirms(r)) {
		s.candidate, s.since = nil, time.Time{}
		return true
	}
	if s.since.IsZero() {
		s.since, s.reportAt = r.begun, r.begun.Add(maxUnstable)
	}
	if s.candidate == nil || s.candidate.version != r.version {
		s.candidate = r.withoutText()
	}
	return false
}

// stableAlone reports whether a reading needs no second one. The times of files are used
// only at the start, where waiting is visible: the clock of a file server may be wrong.
func (s *stability) stableAlone(r *reading) bool {
	if s.used == nil {
		return r.err == nil && r.unchangedFor(s.time)
	}
	return r.content == s.used.content || r.sealed && r.names == s.used.names
}

// confirms reports whether a reading is the same as one that is old enough.
func (s *stability) confirms(r *reading) bool {
	c := s.candidate
	return c != nil && c.version == r.version && r.begun.Sub(c.ended) >= s.time
}

// wait returns how long after a reading that was not stable the next one is due.
func (s *stability) wait(r *reading) time.Duration {
	if r.unfit != nil {
		return s.time
	}
	return max(s.time-r.ended.Sub(s.candidate.ended), time.Millisecond)
}

// overdue returns an error if readings were not stable after so long that it must be
// reported. At the start, a file that was incomplete long before is reported at once.
func (s *stability) overdue(path string, r *reading) error {
	old := s.used == nil && r.unfit != nil && r.unchangedFor(maxUnstable)
	if !old && r.ended.Before(s.reportAt) {
		return nil
	}
	s.reportAt = r.ended.Add(unstableInterval)
	return &UnstableError{Path: path, For: r.ended.Sub(s.since), Reason: cmp.Or(r.unfit, errKeepChanging)}
}

// unchangedFor reports whether the files had not changed for that long when they were
// read. A time in the future says nothing.
func (r *reading) unchangedFor(d time.Duration) bool {
	if r.changed.Nanosecond() == 0 {
		d += coarseTime
	}
	return r.begun.Sub(r.changed) >= d
}

// coarseTime is by how much a file system that stores whole seconds rounds them down.
const coarseTime = 2 * time.Second

// withoutText returns what is needed to compare a reading with later ones.
func (r *reading) withoutText() *reading { return &reading{version: r.version, ended: r.ended} }
