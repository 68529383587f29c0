package penstock

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/hashtable"
	"github.com/penstock-io/penstock/internal/siphash"
)

// A snapshot is the content of a [Memory] as little-endian bytes: a header, the
// entries of all tables, shard by shard, and a SHA-256 of all that. An entry is the
// kind of its table and the words of its slot, followed for a log, a ring or permits by
// the length and the words of its block. A snapshot contains hashes and the key of the
// hash function, but no keys. It preserves shards, because the record of an ID is in
// the shard of its key, which cannot be computed from the hash of the ID.
//
// Times are those of the store's clocks. A restored store continues the monotonic
// clock from where it was, plus the time that has passed on the wall clock.

// ErrBadSnapshot means that a snapshot is damaged, or not one that this version
// can read.
var ErrBadSnapshot = errors.New("bad snapshot")

// ErrSnapshotVersion is the [ErrBadSnapshot] of a snapshot that another version of this package wrote,
// and that is not damaged.
var ErrSnapshotVersion = fmt.Errorf("%w: of another version", ErrBadSnapshot)

const (
	snapshotMagic   = "penstock"
	snapshotVersion = 5

	// In place of the kind of a table:
	nextShard = 0xfe // entries of the next shard follow
	lastEntry = 0xff // no entry follows

	maxBlockWords = 1 << 17 // no log, ring or list of permits has more
)

// A snapshotHeader follows the magic. It has its own checksum, so that damage is
// not mistaken for another clock.
type snapshotHeader struct {
	Version     uint32
	CustomClock uint16 // whether the times are those of MemoryOptions.Now
	ShardBits   uint16
	Tick        int64
	Mono        int64 // monotonic clock when the snapshot began
	Wall        int64 // wall clock at the same time
	Key         [siphash.KeySize]byte
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
	s := newSnapshotWriter(w)
	s.header(m)
	for i := range m.shards {
		s.shard(&m.shards[i])
	}
	s.shard(&m.overflow)
	return s.end()
}

// A snapshotWriter writes a snapshot, and keeps the first error.
type snapshotWriter struct {
	w    *bufio.Writer
	sum  hash.Hash
	copy bytes.Buffer // of one shard, made under its lock
	err  error
}

func newSnapshotWriter(w io.Writer) *snapshotWriter {
	s := &snapshotWriter{w: bufio.NewWriterSize(w, 1<<16), sum: sha256.New()}
	s.copy.WriteString(snapshotMagic)
	return s
}

func (s *snapshotWriter) header(m *Memory) {
	h := snapshotHeader{
		Version: snapshotVersion, ShardBits: uint16(64 - m.shift), Tick: m.tick,
		Mono: m.now(false), Wall: time.Now().UnixNano(), Key: m.key.Bytes(),
	}
	if m.clock != nil {
		h.CustomClock = 1
	}
	s.err = binary.Write(&s.copy, binary.LittleEndian, &h)
	sum := crc32.ChecksumIEEE(s.copy.Bytes()[len(snapshotMagic):])
	s.copy.Write(binary.LittleEndian.AppendUint32(nil, sum))
	s.flush()
}

// shard writes the entries of a shard that have not expired.
func (s *snapshotWriter) shard(sh *shard) {
	s.copy.WriteByte(nextShard)
	sh.mu.Lock()
	for k := range tableKinds {
		s.table(sh, k)
	}
	sh.mu.Unlock()
	s.flush()
}

func (s *snapshotWriter) table(sh *shard, k tableKind) {
	t := &sh.tables[k]
	if t.Len() == 0 {
		return
	}
	now := sh.store.now(k.onWallClock())
	for slot := range t.All {
		if hashtable.Expiry(slot) <= now {
			continue
		}
		s.copy.WriteByte(byte(k))
		s.copy.Write(sh.appendEntry(s.copy.AvailableBuffer(), k, slot, hashWord))
	}
}

// appendEntry appends the words of a slot from the given one on, and its block.
func (s *shard) appendEntry(b []byte, k tableKind, slot []uint64, from int) []byte {
	for _, word := range slot[from:] {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	if !k.hasBlocks() {
		return b
	}
	var words []int64
	if block := blockOf(slot); block != 0 {
		words = s.blocks[k.trust()].Words(block)
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(words)))
	for _, word := range words {
		b = binary.LittleEndian.AppendUint64(b, uint64(word))
	}
	return b
}

// flush adds the copy to the checksum, writes it and empties it.
func (s *snapshotWriter) flush() {
	s.sum.Write(s.copy.Bytes())
	if s.err == nil {
		_, s.err = s.copy.WriteTo(s.w)
	}
	s.copy.Reset()
}

func (s *snapshotWriter) end() error {
	s.copy.WriteByte(lastEntry)
	s.flush()
	if s.err == nil {
		_, s.err = s.w.Write(s.sum.Sum(nil))
	}
	if s.err == nil {
		s.err = s.w.Flush()
	}
	if s.err != nil {
		return fmt.Errorf("penstock: snapshot: %w", s.err)
	}
	return nil
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
	r := &snapshotReader{r: bufio.NewReaderSize(from, 1<<16), sum: sha256.New()}
	h, err := r.header()
	if err != nil {
		return nil, err
	}
	o = cmp.Or(o, &MemoryOptions{})
	m := newMemory(o, int64(defaults.Or(o.MaxKeys, defaultMaxKeys)), int(h.ShardBits))
	if (m.clock != nil) != (h.CustomClock != 0) || m.tick != h.Tick {
		return nil, fmt.Errorf("snapshot was written on another clock: Now and Tick must be as they were")
	}
	m.key = siphash.NewKey(h.Key)
	m.offset = h.Mono + max(time.Now().UnixNano()-h.Wall, 0)
	if err = r.entries(m); err != nil {
		return nil, err
	}
	return m, r.end()
}

// A snapshotReader reads a snapshot.
type snapshotReader struct {
	r   *bufio.Reader
	sum hash.Hash
	buf [64]byte // fits a header, a slot or a checksum
}

// read reads n bytes, which are valid until the next read.
func (r *snapshotReader) read(n int) ([]byte, error) {
	b := r.buf[:n]
	if _, err := io.ReadFull(r.r, b); err != nil {
		return nil, asTruncated(err)
	}
	r.sum.Write(b)
	return b, nil
}

// asTruncated turns the end of the input into an ErrBadSnapshot.
func asTruncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: truncated", ErrBadSnapshot)
	}
	return err
}

func (r *snapshotReader) header() (h snapshotHeader, err error) {
	magic, err := r.read(len(snapshotMagic))
	if err != nil {
		return h, err
	}
	if string(magic) != snapshotMagic {
		return h, fmt.Errorf("%w: not a snapshot", ErrBadSnapshot)
	}
	b, err := r.read(binary.Size(h) + crc32.Size)
	if err != nil {
		return h, err
	}
	fields, sum := b[:binary.Size(h)], binary.LittleEndian.Uint32(b[binary.Size(h):])
	if crc32.ChecksumIEEE(fields) != sum {
		return h, fmt.Errorf("%w: wrong header checksum", ErrBadSnapshot)
	}
	if _, err = binary.Decode(fields, binary.LittleEndian, &h); err != nil {
		return h, err
	}
	if h.Version != snapshotVersion {
		return h, fmt.Errorf("%w: %d, and this reads %d", ErrSnapshotVersion, h.Version, snapshotVersion)
	}
	if h.ShardBits > maxShardBits || h.Tick <= 0 || h.Wall < 0 || h.Mono < 0 || h.Mono > algorithm.MaxTime {
		return h, fmt.Errorf("%w: impossible values in the header", ErrBadSnapshot)
	}
	return h, nil
}

// entries reads all entries into their shards.
func (r *snapshotReader) entries(m *Memory) error {
	var s *shard
	for next := 0; ; {
		mark, err := r.read(1)
		if err != nil {
			return err
		}
		switch k := mark[0]; {
		case k == nextShard && next < len(m.shards):
			s = &m.shards[next]
			next++
		case k == nextShard && next == len(m.shards):
			s = &m.overflow
			next++
		case k == lastEntry && next == len(m.shards)+1:
			return nil
		case tableKind(k) < tableKinds && s != nil:
			err = r.entry(m, s, tableKind(k))
		default:
			err = fmt.Errorf("%w: %#x after %d shards", ErrBadSnapshot, k, next)
		}
		if err != nil {
			return err
		}
	}
}

// entry reads an entry and adds it to its shard, unless it has expired.
func (r *snapshotReader) entry(m *Memory, s *shard, k tableKind) error {
	width := k.slotWidth()
	b, err := r.read(int(width) * 8)
	if err != nil {
		return err
	}
	var slot [maxSlotWidth]uint64
	for i := range width {
		slot[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	if k&^untrustedTable != idTable && s != &m.overflow && s != m.shard(slot[hashWord]) {
		return fmt.Errorf("%w: entry in the wrong shard", ErrBadSnapshot)
	}
	words, err := r.block(k, slot[:width])
	if err != nil {
		return err
	}
	return s.restore(k, slot[:width], words)
}

// block reads the words of a slot's block, and checks that the position lies within it.
func (r *snapshotReader) block(k tableKind, slot []uint64) ([]int64, error) {
	if !k.hasBlocks() {
		return nil, nil
	}
	b, err := r.read(8)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxBlockWords || !positionFits(slot, int(n)) {
		return nil, fmt.Errorf("%w: impossible length or position in a block of %d words", ErrBadSnapshot, n)
	}
	var words []int64
	for range n {
		if b, err = r.read(8); err != nil {
			return nil, err
		}
		words = append(words, int64(binary.LittleEndian.Uint64(b)))
	}
	return words, nil
}

// positionFits reports whether a slot's position is one in a block of n words.
func positionFits(slot []uint64, n int) bool {
	if n == 0 {
		return positionOf(slot) == 0
	}
	size := n - slackOf(slot)
	return size > 0 && positionOf(slot)>>32 < uint64(size) && lenOf(slot) <= size
}

// end verifies the checksum, and that the input ends there.
func (r *snapshotReader) end() error {
	want := r.sum.Sum(nil)
	got, err := r.read(len(want))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: wrong checksum", ErrBadSnapshot)
	}
	if _, err := r.r.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: data after the end", ErrBadSnapshot)
	}
	return nil
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
	return e.shard.appendEntry(nil, e.table, slot, expiryWord), time.Unix(0, hashtable.Expiry(slot)), nil
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
	for i := expiryWord; i < len(entry) && len(state) >= 8; i++ {
		entry[i], state = binary.LittleEndian.Uint64(state), state[8:]
	}
	if e.table.hasBlocks() && len(state) >= 8 && binary.LittleEndian.Uint64(state) == uint64(len(state)/8-1) {
		words, state = make([]int64, len(state)/8-1), state[8:]
		for i := range words {
			words[i], state = int64(binary.LittleEndian.Uint64(state)), state[8:]
		}
	}
	if len(state) > 0 || e.table.hasBlocks() && !(positionFits(entry, len(words)) && e.blockFits(entry, words)) {
		return nil, nil, fmt.Errorf("%w: impossible length, position or block", ErrBadSnapshot)
	}
	return entry, words, nil
}

// blockFits reports whether the words of a block can be those of a ring, whose sums must be right, or of
// permits, which must be in order: what decides on them does not look.
func (e *storedEntry) blockFits(entry []uint64, words []int64) bool {
	switch {
	case len(words) == 0:
		return true
	case e.limit.limit.HasPermits():
		return permitsFit(words, lenOf(entry))
	case e.limit.rolling.Buckets > 0:
		return e.ringFits(entry, words)
	}
	return true
}

func (e *storedEntry) ringFits(entry []uint64, words []int64) bool {
	n, head, newest := int(e.limit.rolling.Buckets)+1, firstOf(entry), int64(entry[newestWord])
	if len(words) < n || head >= n || newest < 0 || newest > algorithm.MaxTime/e.limit.rolling.Length {
		return false
	}
	left := int64(entry[countWord]) // of the total, for the other buckets
	for i, count := range words[:n] {
		if i == head {
			continue
		}
		if left -= count; count < 0 || left < 0 {
			return false
		}
	}
	return left == int64(entry[countWord])-words[head]
}

func permitsFit(words []int64, n int) bool {
	last := int64(0)
	for ; n > 0 && len(words) >= algorithm.PermitWords; n-- {
		expiry, units := words[1], words[2]
		if expiry < last || units == 0 || units > maxConcurrentCount || units < -maxConcurrentCount {
			return false
		}
		last, words = expiry, words[algorithm.PermitWords:]
	}
	return n == 0
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
