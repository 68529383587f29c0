package overrides

import (
	"context"
	"errors"
)

// A SharedCopy holds the overrides of several daemons, each of which has a [Set] of its own. A set
// reads the changes of others from it, and makes its own changes in it first.
type SharedCopy interface {
	// Write writes records with versions above all that there are, and puts them in force by
	// [Set.Receive]. After an error, some of many may be written. If there is another version than [Record.Replaces]
	// says, Write receives that and returns ErrConflict.
	Write(ctx context.Context, s *Set, records []Record) error

	// Sync makes the set receive what has changed since the last call, and writes back what the
	// copy has lost.
	Sync(ctx context.Context, s *Set) error

	// Remove removes records, unless they have changed since.
	Remove(ctx context.Context, records []Record) error

	// WriteUses records when overrides were last used, in Unix seconds by ID.
	WriteUses(ctx context.Context, uses map[string]int64) error

	// ReadUses returns when overrides were last used by any daemon, in Unix seconds, 0 for
	// never. With an error it returns those of the first few.
	ReadUses(ctx context.Context, ids []string) ([]int64, error)
}

// ErrConflict means that another daemon has changed the override.
var ErrConflict = errors.New("the override has changed")

// Refresh reads what has changed in the shared copy, if it can be reached before ctx ends.
// [Set.Run] does so, too. It logs when that begins or ceases to fail.
func (s *Set) Refresh(ctx context.Context) {
	if s.shared == nil {
		return
	}
	err := s.shared.Sync(ctx, s)
	switch {
	case ctx.Err() != nil:
	case err != nil && !s.failing:
		s.failing = true
		s.log.Warn("overrides cannot be read from Redis, the last known stay in force", "err", err)
	case err == nil && s.failing:
		s.failing = false
		s.log.Info("overrides are read from Redis again")
	}
}

// Receive puts records of the shared copy in force, and keeps them in the file.
func (s *Set) Receive(records []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if changed := s.applyAll(records); len(changed) > 0 {
		if err := s.appendJournal(changed, false); err != nil {
			s.log.Error("overrides are in force, but not in the file", "err", err)
		}
	}
}

// Compare returns the records that a copy with these versions by ID lacks, and drops those that it
// has removed: those that it does not have and whose version is not above its horizon. The set
// keeps the horizon: if the copy is lost, this process may be the one that restores it.
func (s *Set) Compare(versions map[string]int64, horizon int64) (missing []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.horizon = max(s.horizon, horizon)
	dropped := s.dropIf(func(e *Entry) bool {
		version, ok := versions[e.record.ID()]
		if version < e.record.Version && (ok || e.record.Version > horizon) {
			missing = append(missing, e.record)
		}
		return !ok && e.record.Version <= horizon
	})
	if len(dropped) > 0 { // or they would be in force after a restart
		s.log.Info("overrides were deleted while this process was cut off", "overrides", len(dropped))
		s.compactJournal()
	}
	if len(missing) > 0 {
		s.usesWritten = 0 // the copy has lost them, too
	}
	return missing
}

// Version returns the highest version that was seen.
func (s *Set) Version() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Horizon returns the highest version of a record that was dropped.
func (s *Set) Horizon() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.horizon
}
