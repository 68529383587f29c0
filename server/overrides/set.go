package overrides

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// Options configure a [Set].
type Options struct {
	// Shared keeps the overrides, so that all daemons have the same. Default: they are
	// kept by this process.
	Shared SharedCopy

	// File is a journal of the overrides: what this process knew last is in force
	// after a restart, even if the shared copy is unavailable. Default: none.
	File string

	// Log receives what happens to the copies. Default: discarded.
	Log *slog.Logger

	// Interval is the time between two looks at the shared copy. Default: half a second.
	Interval time.Duration

	// Now replaces time.Now in tests.
	Now func() time.Time
}

const defaultInterval = 500 * time.Millisecond

// A Set holds all overrides. It is safe for concurrent use.
type Set struct {
	log      *slog.Logger
	now      func() time.Time
	interval time.Duration
	max      int        // MaxOverrides; tests lower it
	shared   SharedCopy // nil if this process is alone
	failing  bool       // whether the last look at the shared copy failed

	mu      sync.Mutex
	entries map[string]*Entry  // by id; with those that ended not long ago
	actions map[string]*Action // by text
	version int64              // the highest seen
	horizon int64              // the highest version of a record that was dropped; see dropIf
	journal *journal           // nil without a file

	usesWritten int64 // Unix seconds when the last report of uses began

	indexes sync.Map // *Index by rule

	kinds     [3]atomic.Int64 // entries that are not deleted, by kind
	penalties penaltyQueue
}

// Open returns a set with what its file has. It must be closed. Nil options are all
// defaults. A damaged file is an error; [Set.Run] reads the shared copy.
func Open(o *Options) (*Set, error) {
	o = cmp.Or(o, &Options{})
	s := &Set{
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), now: o.Now, shared: o.Shared,
		interval: cmp.Or(o.Interval, defaultInterval), max: MaxOverrides,
		entries: map[string]*Entry{}, actions: map[string]*Action{},
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.penalties.init()
	if o.File == "" {
		return s, nil
	}
	return s, s.openJournal(o.File)
}

// Close closes the file.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal == nil {
		return nil
	}
	return s.journal.close()
}

// Durable reports whether the overrides outlast the process.
func (s *Set) Durable() bool { return s.shared != nil || s.journal != nil }

// Shared reports whether other daemons have the same overrides.
func (s *Set) Shared() bool { return s.shared != nil }

// Index returns the index of a rule, which is valid as long as the set.
func (s *Set) Index(rule string) *Index {
	x, ok := s.indexes.Load(rule)
	if !ok {
		x, _ = s.indexes.LoadOrStore(rule, &Index{})
	}
	return x.(*Index)
}

// Put sets overrides. Those of the same rule and key are replaced. It returns when this process
// decides by them; other daemons do so within a second. If the shared copy fails, it is not known
// which of them are set; to set them again does no harm.
func (s *Set) Put(ctx context.Context, all []Override) error {
	records := make([]Record, len(all))
	for i := range all {
		if err := all[i].Validate(); err != nil {
			return &ItemError{i, err}
		}
		records[i] = Record{Override: all[i]}
	}
	if err := s.checkRoom(records); err != nil {
		return err
	}
	return s.write(ctx, records)
}

// An ItemError says which of several overrides caused an error.
type ItemError struct {
	Index int // from 0
	Err   error
}

func (e *ItemError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the override.
func (e *ItemError) Unwrap() error { return e.Err }

// ErrNotFound means that there is no such override.
var ErrNotFound = errors.New("no such override")

// Delete ends overrides, of which only Rule and Key matter: all or none. It returns
// [ErrNotFound] if one of them does not exist or has ended.
func (s *Set) Delete(ctx context.Context, all []Override) error {
	records := make([]Record, len(all))
	for i, o := range all {
		if s.Get(o.Rule, o.Key) == nil {
			return &ItemError{i, ErrNotFound}
		}
		records[i] = Record{Override: Override{Rule: o.Rule, Key: o.Key, Limit: banText}, Deleted: true}
	}
	return s.write(ctx, records)
}

// write gives records their versions, keeps them, and puts them in force. It returns ErrConflict if one of them may not
// replace what is there.
func (s *Set) write(ctx context.Context, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	if s.shared != nil {
		return s.shared.Write(ctx, s, records)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range records {
		want, e := records[i].Replaces, s.entries[records[i].ID()]
		if want != nil && e != nil && e.record.Version != *want {
			return ErrConflict
		}
	}
	for i := range records {
		s.version = max(s.version+1, s.now().UnixMicro())
		records[i].Version = s.version
	}
	if err := s.appendJournal(records, true); err != nil {
		return err
	}
	s.applyAll(records)
	return nil
}

// checkRoom returns ErrFull if there is no room for the records.
func (s *Set) checkRoom(records []Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries)+len(records) <= s.max {
		return nil // without a look at all entries for each of many calls
	}
	live := 0
	now := s.now().UnixNano()
	for _, e := range s.entries {
		if !e.endedAt(now) {
			live++
		}
	}
	for i := range records {
		if e := s.entries[records[i].ID()]; e == nil || e.endedAt(now) {
			live++
		}
	}
	if live > s.max {
		return ErrFull
	}
	return nil
}

// maxEntries bounds the overrides with those that have ended.
const maxEntries = 2 * MaxOverrides

// applyAll puts records in force and returns those that were newer than what the set had. A
// full set forgets those that have ended, to have room for them.
func (s *Set) applyAll(records []Record) (changed []Record) {
	if len(s.entries)+len(records) > maxEntries {
		s.purge(0)
	}
	for i := range records {
		if s.apply(&records[i]) {
			changed = append(changed, records[i])
		}
	}
	return changed
}

// apply puts a record in force, unless the set has a version that is as high.
func (s *Set) apply(r *Record) bool {
	id := r.ID()
	old := s.entries[id]
	s.version = max(s.version, r.Version)
	if old != nil && old.record.Version >= r.Version || old == nil && len(s.entries) >= maxEntries {
		return false
	}
	e, err := s.newEntry(r, old)
	if err != nil {
		return false
	}
	s.count(old, -1)
	s.count(e, 1)
	s.entries[id] = e
	if x := s.Index(r.Rule); r.Deleted && !e.counts() {
		x.set(e.pattern, nil)
	} else {
		x.set(e.pattern, e)
	}
	return true
}

// newEntry returns the entry of a record that replaces another, which may be nil.
func (s *Set) newEntry(r *Record, old *Entry) (*Entry, error) {
	action, pattern, err := r.parse()
	if err != nil {
		return nil, err
	}
	if known := s.actions[action.text]; known != nil {
		action = known
	} else if len(s.actions) < maxEntries {
		s.actions[action.text] = action
	}
	e := &Entry{Action: action, record: *r, pattern: pattern}
	if !r.Until.IsZero() {
		e.until = r.Until.UnixNano()
	}
	if s.shared != nil {
		e.newUntil = time.Now().Add(NewFor).UnixNano()
	}
	if old != nil {
		e.follow(old, s.now().UnixNano())
	}
	return e, nil
}

// maxFrom is how many earlier limits of a key are remembered.
const maxFrom = 4

// follow takes over from the entry before what is still of use. If that one has ended, requests to
// other daemons may have carried its units back to the rule's limit, even if none came to this one.
func (e *Entry) follow(old *Entry, now int64) {
	if old.Action == e.Action && !e.record.Deleted && !old.record.Deleted {
		e.from = old.from
		if old.carried.Load() == inForce && !old.endedAt(now) {
			e.carried.Store(inForce)
		}
		return
	}
	if old.carried.Load() < ended {
		e.from = slices.Clone(old.from)
		if old.Kind == Limited { // it is the last one now, wherever it was before
			e.from = slices.DeleteFunc(e.from, func(l penstock.Limit) bool { return l == old.Limit })
			e.from = append(e.from, old.Limit)
		}
		e.from = e.from[max(0, len(e.from)-maxFrom):]
	}
}

func (s *Set) count(e *Entry, n int64) {
	if e != nil && !e.record.Deleted {
		s.kinds[e.Kind].Add(n)
		if e.record.Strikes > 0 {
			s.penalties.bans += n
		}
	}
}

// Count returns how many overrides of a kind there are, with those that ended within the
// last day.
func (s *Set) Count(k Kind) int64 { return s.kinds[k].Load() }

// purge forgets overrides that ended longer than keep ago.
func (s *Set) purge(keep time.Duration) {
	now := s.now()
	s.dropIf(func(e *Entry) bool { return e.record.expiredAt(now, keep) })
}

// dropIf forgets entries, and returns their records. The horizon then says that a copy of a version up to it,
// which the set does not have, is one that was dropped, and not one that was lost.
func (s *Set) dropIf(unwanted func(*Entry) bool) (gone []Record) {
	for id, e := range s.entries {
		if !unwanted(e) {
			continue
		}
		s.horizon = max(s.horizon, e.record.Version)
		s.count(e, -1)
		delete(s.entries, id)
		s.Index(e.record.Rule).set(e.pattern, nil)
		gone = append(gone, e.record)
	}
	return gone
}

// A Listed override has when it was last used: by this process, or after [Set.AddUses] by any.
type Listed struct {
	Override
	Used time.Time // zero if never

	set int64 // Unix seconds, by its version
}

// List returns the overrides in force, sorted by rule and key. A rule or key that is not
// empty selects those of it.
func (s *Set) List(rule, key string) []Listed {
	s.mu.Lock()
	now := s.now().UnixNano()
	var all []Listed
	for _, e := range s.entries {
		if e.endedAt(now) || rule != "" && e.record.Rule != rule || key != "" && e.record.Key != key {
			continue
		}
		all = append(all, e.Listed())
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b Listed) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return all
}

// upkeepInterval is the time between two searches for overrides that ended long ago, and between two reports of
// uses to other daemons.
const upkeepInterval = time.Minute

// Run follows the shared copy, forgets overrides that ended long ago, reports which were used, and
// sets the bans of penalties, until ctx ends.
func (s *Set) Run(ctx context.Context) {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	defer s.writeLastUses(ctx)
	last := s.now()
	for {
		s.Refresh(ctx)
		if now := s.now(); now.Sub(last) >= upkeepInterval {
			last = now
			s.Purge(ctx)
			s.WriteUses(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case o := <-s.penalties.queue:
			s.ban(ctx, &o)
		}
		s.BanOffenders(ctx)
	}
}

// Purge forgets overrides that ended long ago, here and in the shared copy. [Set.Run] does so, too.
func (s *Set) Purge(ctx context.Context) {
	now := s.now()
	s.forget(ctx, func(e *Entry) bool { return e.record.expiredAt(now, retention) })
}

// forget drops entries here, from the file and from the shared copy.
func (s *Set) forget(ctx context.Context, unwanted func(*Entry) bool) {
	s.mu.Lock()
	gone := s.dropIf(unwanted)
	if len(gone) > 0 {
		s.compactJournal()
	}
	s.mu.Unlock()
	if s.shared != nil && len(gone) > 0 {
		_ = s.shared.Remove(ctx, gone) // or another daemon does it, or the next one to start
	}
}

// Get returns the override of a rule and a key in the form of [ParsePattern], or nil.
func (s *Set) Get(rule, key string) *Override {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := Override{Rule: rule, Key: key}
	e := s.entries[o.ID()]
	if e == nil || e.endedAt(s.now().UnixNano()) {
		return nil
	}
	return &e.record.Override
}
