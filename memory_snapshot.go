package penstock

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/hashtable"
	"github.com/penstock-io/penstock/internal/siphash"
	"github.com/penstock-io/penstock/internal/snapshot"
)

// A snapshot is the content of a [Memory]; package snapshot describes its bytes. It contains hashes
// and the key of the hash function, but no keys. It preserves shards, because the record of an ID
// is in the shard of its key, which cannot be computed from the hash of the ID.
//
// Times are those of the store's clocks. A restored store continues the monotonic
// clock from where it was, plus the time that has passed on the wall clock.

// ErrBadSnapshot means that a snapshot is damaged, or not one that this version
// can read.
var ErrBadSnapshot = snapshot.ErrBad

// ErrSnapshotVersion is the [ErrBadSnapshot] of a snapshot that another version of this package wrote,
// and that is not damaged.
var ErrSnapshotVersion = snapshot.ErrVersion

// snapshotKind returns what a snapshot has of each entry of a table: the words of a slot from the given one on.
func (k tableKind) snapshotKind(from int) snapshot.Kind {
	return snapshot.Kind{Words: int(k.slotWidth()) - from, HasBlock: k.hasBlocks()}
}

func snapshotKinds() (kinds snapshot.Kinds) {
	for k := range tableKinds {
		kinds = append(kinds, k.snapshotKind(hashWord))
	}
	return kinds
}

// Snapshot writes the content of the store, for [RestoreMemory]. The store must
// be [MemoryOptions].Durable, and stays in use: Snapshot copies one shard at a
// time, and delays requests only while it copies their shard.
//
// A snapshot contains no keys, but it lets a reader test whether the store held a
// given key.
func (m *Memory) Snapshot(w io.Writer) error {
	if m.key == nil {
		return errors.New("penstock: snapshot: the store is not Durable: see MemoryOptions")
	}
	s := snapshot.NewWriter(w, snapshot.Header{
		CustomClock: m.clock != nil, ShardBits: uint16(64 - m.shift), Tick: m.tick,
		Mono: m.now(false), Wall: time.Now().UnixNano(), Key: m.key.Bytes(),
	}, snapshotKinds())
	for i := range m.shards {
		m.shards[i].addTo(s)
	}
	m.overflow.addTo(s)
	if err := s.Close(); err != nil {
		return fmt.Errorf("penstock: snapshot: %w", err)
	}
	return nil
}

// addTo adds the entries of a shard that have not expired.
func (s *shard) addTo(w *snapshot.Writer) {
	w.NextShard()
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range tableKinds {
		s.addTable(w, k)
	}
}

func (s *shard) addTable(w *snapshot.Writer, k tableKind) {
	t := &s.tables[k]
	if t.Len() == 0 {
		return
	}
	now := s.store.now(k.onWallClock())
	for slot := range t.All {
		if hashtable.Expiry(slot) > now {
			w.Add(byte(k), slot, s.blockWords(k, slot))
		}
	}
}

// blockWords returns the words of a slot's block, if it has one.
func (s *shard) blockWords(k tableKind, slot []uint64) []int64 {
	if !k.hasBlocks() || blockOf(slot) == 0 {
		return nil
	}
	return s.blocks[k.trust()].Words(blockOf(slot))
}

// RestoreMemory returns a store with the content of a snapshot. It is Durable,
// whatever the options say. The time since the snapshot counts: units that were
// due in the meantime are available. If the machine's clock was set back, no time
// has passed. If the snapshot is damaged, the error wraps [ErrBadSnapshot].
func RestoreMemory(r io.Reader, o *MemoryOptions) (*Memory, error) {
	m, err := restore(r, o)
	if err != nil {
		return nil, fmt.Errorf("penstock: restore: %w", err)
	}
	return m, nil
}

func restore(from io.Reader, o *MemoryOptions) (*Memory, error) {
	r, h, err := snapshot.NewReader(from, snapshotKinds())
	if err != nil {
		return nil, err
	}
	o = cmp.Or(o, &MemoryOptions{})
	m := newMemory(o, int64(defaults.Or(o.MaxKeys, defaultMaxKeys)), int(h.ShardBits))
	if (m.clock != nil) != h.CustomClock || m.tick != h.Tick {
		return nil, fmt.Errorf("snapshot was written on another clock: Now and Tick must be as they were")
	}
	m.key = siphash.NewKey(h.Key)
	m.offset = h.Mono + max(time.Now().UnixNano()-h.Wall, 0)
	var e snapshot.Entry
	for err = r.Next(&e); err == nil; err = r.Next(&e) {
		if err = m.restore(&e); err != nil {
			return nil, err
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return m, nil
}

// restore adds an entry to its shard, unless it has expired.
func (m *Memory) restore(e *snapshot.Entry) error {
	s, k := &m.overflow, tableKind(e.Kind)
	if e.Shard < len(m.shards) {
		s = &m.shards[e.Shard]
	}
	if k&^untrustedTable != idTable && s != &m.overflow && s != m.shard(e.Words[hashWord]) {
		return fmt.Errorf("%w: entry in the wrong shard", ErrBadSnapshot)
	}
	if k.hasBlocks() && !positionFits(e.Words, len(e.Block)) {
		return fmt.Errorf("%w: impossible position in a block of %d words", ErrBadSnapshot, len(e.Block))
	}
	return s.restore(k, e.Words, e.Block)
}

// positionFits reports whether a slot's position is one in a block of n words.
func positionFits(slot []uint64, n int) bool {
	if n == 0 {
		return positionOf(slot) == 0
	}
	size := n - slackOf(slot)
	return size > 0 && positionOf(slot)>>32 < uint64(size) && lenOf(slot) <= size
}

// restore adds an entry, unless it has expired. The shard is not in use yet.
func (s *shard) restore(k tableKind, entry []uint64, words []int64) error {
	now := s.store.now(k.onWallClock())
	t := &s.tables[k]
	if hashtable.Expiry(entry) <= now {
		return nil
	}
	if entry[hashWord] == 0 || t.Slot(entry[hashWord]) != nil {
		return fmt.Errorf("%w: empty or duplicate entry", ErrBadSnapshot)
	}
	s.store.overflowRestored = s.store.overflowRestored || s == &s.store.overflow
	return s.put(k, s.newSlot(k, entry[hashWord], now), entry, words)
}

// put writes an entry into its slot, and its words into a new block.
func (s *shard) put(k tableKind, slot, entry []uint64, words []int64) error {
	if slot == nil {
		return fmt.Errorf("more keys than MaxKeys%s, %d", ofShare(k), s.slots[k.trust()].Max())
	}
	copy(slot, entry)
	s.tables[k].NoteExpiry(hashtable.Expiry(slot))
	if !k.hasBlocks() {
		return nil
	}
	putBlock(slot, 0)
	if len(words) == 0 {
		return nil
	}
	blocks := &s.blocks[k.trust()]
	b := blocks.Alloc(len(words))
	if b == 0 {
		return fmt.Errorf("more bytes of logs, rings and permits than MaxBytes%s", ofShare(k))
	}
	copy(blocks.Words(b), words)
	putBlock(slot, b)
	return nil
}

// ofShare adds to an option which share of it a table can use.
func ofShare(k tableKind) string {
	if k.trust() == untrusted {
		return " times UntrustedShare"
	}
	return ""
}

// The rest of this file is for a store that keeps states elsewhere, as package rowstore does: it sets
// them, lets a Memory decide, and reads them again.

// State returns what the store holds of the request's key or, if it has an ID, of the grant under
// that ID, and when that ends. It is nil if there is nothing. The store must have
// [MemoryOptions].Now and HashKey: then another process with the same HashKey and Tick can decide on
// the state, by the same limit. Permits are part of their key's state.
func (m *Memory) State(r Request) (state []byte, until time.Time, err error) {
	e, err := m.locate(&r)
	if err != nil {
		return nil, until, err
	}
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	slot := e.shard.tables[e.table].Slot(e.hash)
	if slot == nil || hashtable.Expiry(slot) <= m.now(e.table.onWallClock()) {
		return nil, until, nil
	}
	words := e.shard.blockWords(e.table, slot)
	return e.table.snapshotKind(expiryWord).Append(nil, slot[expiryWord:], words), time.Unix(0, hashtable.Expiry(slot)), nil
}

// SetState replaces what State returns. A nil state removes it.
func (m *Memory) SetState(r Request, state []byte) error {
	e, err := m.locate(&r)
	if err != nil {
		return err
	}
	entry, words, err := e.decode(state)
	if err != nil {
		return fmt.Errorf("penstock: state of key %q: %w", r.Key, err)
	}
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	return e.shard.replace(e.table, entry, words)
}

// A storedEntry says where the store holds something.
type storedEntry struct {
	limit *compiledLimit
	shard *shard
	table tableKind
	hash  uint64
}

func (m *Memory) locate(r *Request) (e storedEntry, err error) {
	if m.clock == nil || m.key == nil {
		return e, errors.New("penstock: states can be read and set only with MemoryOptions.Now and HashKey")
	}
	if e.limit, err = m.compile(r); err != nil {
		return e, err
	}
	e.table, e.hash = e.limit.table, m.hashOf(e.limit, r.Key)
	e.shard = m.shard(e.hash)
	if r.ID != "" {
		e.table, e.hash = idTableOf(e.limit), m.hashOfID(e.hash, r.ID)
	}
	return e, nil
}

// decode reads the words of a slot, and those of its block. A nil state is a slot of zeroes.
func (e *storedEntry) decode(state []byte) (entry []uint64, words []int64, err error) {
	entry = make([]uint64, e.table.slotWidth())
	entry[hashWord] = e.hash
	if len(state) == 0 {
		return entry, nil, nil
	}
	slot, words, ok := e.table.snapshotKind(expiryWord).Decode(state)
	copy(entry[expiryWord:], slot)
	if !ok || e.table.hasBlocks() && !(positionFits(entry, len(words)) && e.blockFits(entry, words)) {
		return nil, nil, fmt.Errorf("%w: impossible length, position or block", ErrBadSnapshot)
	}
	return entry, words, nil
}

// blockFits reports whether the words of a block can be those of a ring, of permits or of a log: what
// decides on them does not look.
func (e *storedEntry) blockFits(entry []uint64, words []int64) bool {
	switch n := int(e.limit.rolling.Buckets) + 1; {
	case len(words) == 0:
		return true
	case e.limit.limit.HasPermits():
		p := permitsOf(entry, words)
		return p.Len == lenOf(entry) && p.IsValid(maxConcurrentCount)
	case n > 1:
		return len(words) >= n && firstOf(entry) < n && e.limit.rolling.IsValid(ringOf(e.limit, entry, slices.Clone(words)))
	}
	log := logOf(e.limit, entry, words)
	return log.IsValid()
}

// sweepReplaced bounds how many removed entries a table keeps.
const sweepReplaced = 128

// replace puts an entry in place of the one with its hash. One that has expired only removes that.
func (s *shard) replace(k tableKind, entry []uint64, words []int64) error {
	t, now := &s.tables[k], s.store.now(k.onWallClock())
	slot := t.Slot(entry[hashWord])
	if slot != nil {
		s.clearSlot(k, slot)
		t.NoteExpiry(0)
	}
	if hashtable.Expiry(entry) <= now {
		if s.missed++; t.Len() > sweepReplaced {
			s.sweep()
		}
		return nil
	}
	if slot == nil {
		slot = s.newSlot(k, entry[hashWord], now)
	}
	return s.put(k, slot, entry, words)
}
