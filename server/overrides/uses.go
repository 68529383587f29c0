package overrides

import (
	"context"
	"time"
)

// When an override was last used is of interest to operators only: no daemon decides by it. So a
// daemon writes its uses once a minute and when it ends, those of others are read when a list is
// shown, and an error costs nothing but accuracy.

// lastUsesTimeout bounds the report of a daemon that ends.
const lastUsesTimeout = 250 * time.Millisecond

// addUsesTimeout bounds how long a list waits for the uses by other daemons.
const addUsesTimeout = 2 * time.Second

// WriteUses writes the uses since the last call to where daemons share them. [Set.Run] does so, too.
func (s *Set) WriteUses(ctx context.Context) {
	if s.shared == nil {
		return
	}
	start := time.Now().Unix()
	if uses := s.newUses(); len(uses) == 0 || s.shared.WriteUses(ctx, uses) == nil {
		s.mu.Lock()
		s.usesWritten = start
		s.mu.Unlock()
	}
}

// newUses returns when overrides were last used, in Unix seconds by ID, of those that were used since
// the last report began.
func (s *Set) newUses() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	uses := map[string]int64{}
	for id, e := range s.entries {
		if used := e.used.Load(); used > 0 && used >= s.usesWritten && !e.record.Deleted {
			uses[id] = used
		}
	}
	return uses
}

// writeLastUses reports the uses of a process that ends.
func (s *Set) writeLastUses(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastUsesTimeout)
	defer cancel()
	s.WriteUses(ctx)
}

// AddUses adds the uses by all daemons to a list, as far as they can be read. Those of other
// daemons may be a minute old.
func (s *Set) AddUses(ctx context.Context, list []Listed) {
	if s.shared == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, addUsesTimeout)
	defer cancel()
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID()
	}
	seconds, _ := s.shared.ReadUses(ctx, ids) // an error leaves those that were read
	now := s.now().Unix()
	for i, used := range seconds {
		// The clock of another daemon may be ahead. What was used before is an earlier override of the key.
		if at := time.Unix(min(used, now), 0).UTC(); used > 0 && used >= list[i].set && at.After(list[i].Used) {
			list[i].Used = at
		}
	}
}
