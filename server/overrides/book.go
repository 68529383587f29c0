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
	"github.com/penstock-io/penstock/redisstore"
)

// Options configure a [Book].
type Options struct {
	// Redis keeps the overrides, so that all daemons have the same. Default: they are
	// kept by this process.
	Redis *redisstore.Store

	// File is a journal of the overrides: what this process knew last is in force
	// after a restart, even if Redis is unavailable. Default: none.
	File string

	// Log receives what happens to the copies. Default: discarded.
	Log *slog.Logger

	// Interval is the time between two looks at Redis. Default: half a second.
	Interval time.Duration

	// now replaces time.Now in tests.
	now func() time.Time
}

const defaultInterval = 500 * time.Millisecond

// A Book holds all overrides. It is safe for concurrent use.
type Book struct {
	log      *slog.Logger
	now      func() time.Time
	interval time.Duration
	max      int        // MaxOverrides; tests lower it
	redis    *redisCopy // nil without Redis

	mu      sync.Mutex
	entries map[string]*Entry // by id; with those that ended not long ago
	ranges  map[string]map[string]*Entry
	actions map[string]*Action // by text
	version int64              // the highest seen
	horizon int64              // the highest version of a record that was dropped; see drop
	journal *journal           // nil without a file

	indexes sync.Map // *Index by rule
	wake    chan struct{}

	kinds     [3]atomic.Int64 // entries that are not deleted, by kind
	penalties penaltyQueue
}

// Open returns a book with what its file has. It must be closed. Nil options are all
// defaults. A damaged file is an error; [Book.Run] reads what Redis has.
func Open(o *Options) (*Book, error) {
	if o == nil {
		o = &Options{}
	}
	b := &Book{
		log: o.Log, now: o.now, interval: cmp.Or(o.Interval, defaultInterval), max: MaxOverrides,
		entries: map[string]*Entry{}, ranges: map[string]map[string]*Entry{}, actions: map[string]*Action{},
		wake: make(chan struct{}, 1),
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.now == nil {
		b.now = time.Now
	}
	b.penalties.init()
	if o.Redis != nil {
		b.redis = &redisCopy{book: b, store: o.Redis}
	}
	if o.File == "" {
		return b, nil
	}
	return b, b.openJournal(o.File)
}

// Close closes the file.
func (b *Book) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.journal == nil {
		return nil
	}
	return b.journal.close()
}

// Durable reports whether the overrides outlast the process.
func (b *Book) Durable() bool { return b.redis != nil || b.journal != nil }

// Index returns the index of a rule, which is valid as long as the book.
func (b *Book) Index(rule string) *Index {
	x, ok := b.indexes.Load(rule)
	if !ok {
		x, _ = b.indexes.LoadOrStore(rule, &Index{})
	}
	return x.(*Index)
}

// Put sets overrides, all or none. Those of the same rule and key are replaced. It returns
// when this process decides by them; other daemons do so within a second.
func (b *Book) Put(ctx context.Context, all []Override) error {
	records := make([]record, len(all))
	for i := range all {
		if err := all[i].Validate(); err != nil {
			return &ItemError{i, err}
		}
		records[i] = record{Override: all[i]}
	}
	if err := b.checkRoom(records); err != nil {
		return err
	}
	return b.write(ctx, records, nil)
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
func (b *Book) Delete(ctx context.Context, all []Override) error {
	records := make([]record, len(all))
	now := b.now().UnixNano()
	b.mu.Lock()
	for i := range all {
		r := record{Override: Override{Rule: all[i].Rule, Key: all[i].Key, Limit: banText}, deleted: true}
		if e := b.entries[r.id()]; e == nil || e.endedAt(now) {
			b.mu.Unlock()
			return &ItemError{i, ErrNotFound}
		}
		records[i] = r
	}
	b.mu.Unlock()
	return b.write(ctx, records, nil)
}

// write gives records their versions, keeps them, and puts them in force. If expected is
// not nil, it holds the version that each replaces, 0 for none, and errConflict is returned
// if that is not so.
func (b *Book) write(ctx context.Context, records []record, expected []int64) error {
	if len(records) == 0 {
		return nil
	}
	if b.redis != nil {
		return b.redis.put(ctx, records, expected)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, want := range expected {
		if e := b.entries[records[i].id()]; e != nil && e.record.version != want {
			return errConflict
		}
	}
	for i := range records {
		b.version = max(b.version+1, b.now().UnixMicro())
		records[i].version = b.version
	}
	if err := b.appendJournal(records, true); err != nil {
		return err
	}
	b.applyAll(records)
	return nil
}

// errConflict means that another daemon has changed the override.
var errConflict = errors.New("the override has changed")

// checkRoom returns ErrFull if there is no room for the records.
func (b *Book) checkRoom(records []record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	added := 0
	now := b.now().UnixNano()
	for i := range records {
		if e := b.entries[records[i].id()]; e == nil || e.endedAt(now) {
			added++
		}
	}
	if len(b.entries)+added <= b.max {
		return nil
	}
	live := 0
	for _, e := range b.entries {
		if !e.endedAt(now) {
			live++
		}
	}
	if live+added > b.max {
		return ErrFull
	}
	if len(b.entries)+added > maxEntries {
		b.purge(0)
	}
	return nil
}

// maxEntries bounds the overrides with those that have ended.
const maxEntries = 2 * MaxOverrides

// receive puts records of Redis in force, and keeps them in the file.
func (b *Book) receive(records []record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if changed := b.applyAll(records); len(changed) > 0 {
		if err := b.appendJournal(changed, false); err != nil {
			b.log.Error("overrides are in force, but not in the file", "err", err)
		}
	}
}

// applyAll puts records in force and returns those that were newer than what the book had. A
// full book forgets those that have ended, to have room for them.
func (b *Book) applyAll(records []record) (changed []record) {
	if len(b.entries)+len(records) > maxEntries {
		b.purge(0)
	}
	rules := map[string]bool{}
	for i := range records {
		if !b.apply(&records[i], rules) {
			continue
		}
		changed = append(changed, records[i])
	}
	for rule := range rules {
		b.rebuildRanges(rule)
	}
	return changed
}

// apply puts a record in force, unless the book has a version that is as high. It adds the
// rule to changed if its ranges must be rebuilt.
func (b *Book) apply(r *record, changed map[string]bool) bool {
	id := r.id()
	old := b.entries[id]
	b.version = max(b.version, r.version)
	if old != nil && old.record.version >= r.version || old == nil && len(b.entries) >= maxEntries {
		return false
	}
	e, err := b.newEntry(r, old)
	if err != nil {
		return false
	}
	b.count(old, -1)
	b.count(e, 1)
	b.entries[id] = e
	switch x := b.Index(r.Rule); {
	case !e.pattern.Exact():
		b.putRange(id, e)
		changed[r.Rule] = true
	case r.deleted && !e.counts():
		if old != nil {
			x.removeExact(old)
		}
	default:
		x.putExact(e)
	}
	return true
}

// newEntry returns the entry of a record that replaces another, which may be nil.
func (b *Book) newEntry(r *record, old *Entry) (*Entry, error) {
	action, pattern, err := r.parse()
	if err != nil {
		return nil, err
	}
	if known := b.actions[action.text]; known != nil {
		action = known
	} else if len(b.actions) < maxEntries {
		b.actions[action.text] = action
	}
	e := &Entry{Action: action, record: *r, pattern: pattern, hash: hashOf(pattern.text)}
	if !r.Until.IsZero() {
		e.until = r.Until.UnixNano()
	}
	if old != nil {
		e.follow(old, b.now().UnixNano())
	}
	return e, nil
}

// maxFrom is how many earlier limits of a key are remembered.
const maxFrom = 4

// follow takes over from the entry before what is still of use. If that one has ended, requests to
// other daemons may have carried its units back to the rule's limit, even if none came to this one.
func (e *Entry) follow(old *Entry, now int64) {
	e.used.Store(old.used.Load())
	e.told = old.told
	if old.Action == e.Action && !e.record.deleted && !old.record.deleted {
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

func (b *Book) count(e *Entry, n int64) {
	if e != nil && !e.record.deleted {
		b.kinds[e.Kind].Add(n)
	}
}

// Count returns how many overrides of a kind there are, with those that ended within the
// last day.
func (b *Book) Count(k Kind) int64 { return b.kinds[k].Load() }

func (b *Book) putRange(id string, e *Entry) {
	ranges := b.ranges[e.record.Rule]
	if ranges == nil {
		ranges = map[string]*Entry{}
		b.ranges[e.record.Rule] = ranges
	}
	ranges[id] = e
	if e.record.deleted {
		delete(ranges, id)
	}
}

func (b *Book) rebuildRanges(rule string) {
	all := make([]*Entry, 0, len(b.ranges[rule]))
	for _, e := range b.ranges[rule] {
		all = append(all, e)
	}
	b.Index(rule).ranges.Store(newRangeTable(all))
}

// purge forgets overrides that ended longer than keep ago.
func (b *Book) purge(keep time.Duration) (gone []record) {
	now, rules := b.now(), map[string]bool{}
	for id, e := range b.entries {
		if e.record.expiredAt(now, max(keep, 0)) {
			gone = append(gone, e.record)
			b.drop(id, e, rules)
		}
	}
	for rule := range rules {
		b.rebuildRanges(rule)
	}
	return gone
}

// drop forgets an entry. The horizon then says that a copy of a version up to it, which the
// book does not have, is one that was dropped, and not one that was lost.
func (b *Book) drop(id string, e *Entry, rules map[string]bool) {
	b.horizon = max(b.horizon, e.record.version)
	b.count(e, -1)
	delete(b.entries, id)
	if e.pattern.Exact() {
		b.Index(e.record.Rule).removeExact(e)
		return
	}
	delete(b.ranges[e.record.Rule], id)
	rules[e.record.Rule] = true
}

// A Listed override has when it was last used: by this process, or after [Book.AddUses] by any.
type Listed struct {
	Override
	Used time.Time // zero if never
}

// List returns the overrides in force, sorted by rule and key. A rule or key that is not
// empty selects those of it.
func (b *Book) List(rule, key string) []Listed {
	b.mu.Lock()
	now := b.now().UnixNano()
	var all []Listed
	for _, e := range b.entries {
		if e.endedAt(now) || rule != "" && e.record.Rule != rule || key != "" && e.record.Key != key {
			continue
		}
		all = append(all, e.Listed())
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(a, b Listed) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	return all
}

// Refresh reads what Redis has, if it can be reached before ctx ends. Run does so, too.
func (b *Book) Refresh(ctx context.Context) {
	if b.redis != nil {
		b.redis.follow(ctx)
	}
}

// purgeInterval is the time between two searches for overrides that ended long ago.
const purgeInterval = time.Minute

// Run follows Redis, forgets overrides that ended long ago, tells other daemons which were
// used, and sets the bans of penalties, until ctx ends.
func (b *Book) Run(ctx context.Context) {
	tick := time.NewTicker(b.interval)
	defer tick.Stop()
	defer b.tellLastUses(ctx)
	lastPurge, lastTell := b.now(), b.now()
	for {
		b.Refresh(ctx)
		if now := b.now(); now.Sub(lastPurge) >= purgeInterval {
			lastPurge = now
			b.purgeEverywhere(ctx)
		}
		if now := b.now(); now.Sub(lastTell) >= tellInterval {
			lastTell = now
			b.tellUses(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-b.wake:
		}
		b.penalize(ctx)
	}
}

func (b *Book) purgeEverywhere(ctx context.Context) {
	b.mu.Lock()
	gone := b.purge(retention)
	if len(gone) > 0 && b.journal != nil {
		if err := b.compactJournal(); err != nil {
			b.log.Error("the file of overrides was not rewritten", "err", err)
		}
	}
	b.mu.Unlock()
	if b.redis != nil {
		b.redis.purge(ctx, gone)
	}
}

// Get returns the override of a rule and a key in the form of [ParsePattern], or nil.
func (b *Book) Get(rule, key string) *Override {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := record{Override: Override{Rule: rule, Key: key}}
	e := b.entries[r.id()]
	if e == nil || e.endedAt(b.now().UnixNano()) {
		return nil
	}
	return &e.record.Override
}
