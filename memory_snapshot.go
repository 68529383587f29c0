package penstock

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A snapshot is what a [Memory] holds, as bytes, in little endian order: a head,
// the entries of all tables as they are, one shard after the other, and a checksum
// of all that. An entry is the kind of its table, its words, and, for a log or a
// ring, how long its run of words is, and these. Keys are not part of it, only
// their hashes, and the secret that these depend on. The shards are restored as
// they were, because a grant is in the shard of its key, which it does not tell.
//
// Times are those of the store's clocks. The steady one goes on, when a snapshot is
// restored, from where it was, plus what the time of day says has passed since.

// ErrBadSnapshot means that a snapshot is damaged, or not one that this version
// can read.
var ErrBadSnapshot = errors.New("bad snapshot")

const (
	snapshotMagic   = "penstock"
	snapshotVersion = 1

	// In place of the kind of a table:
	nextShard = 0xfe // the entries of the next shard follow
	lastEntry = 0xff // no entry follows

	maxRunWords = 1 << 17 // more than any log or ring has
)

// A snapshotHead is what a snapshot begins with, behind the magic and before a
// checksum of its own: what is wrong with it must not be taken for another clock.
type snapshotHead struct {
	Version   uint32
	OwnClock  uint16 // whether the times are those of MemoryOptions.Now
	ShardBits uint16
	Tick      int64
	Steady    int64 // the steady clock, …
	Wall      int64 // … and the time of day, when the snapshot was begun
	Secret    [secretLen]byte
}

// Snapshot writes what the store holds, for [RestoreMemory] to read. The store
// goes on meanwhile: each of its parts is written as it is at one moment, and
// nobody waits for longer than it takes to copy one. The options must have said
// that the store is Durable.
//
// Whoever reads a snapshot can find out whether it knows a key. It holds no keys.
func (m *Memory) Snapshot(w io.Writer) error {
	if m.secret == nil {
		return errors.New("penstock: snapshot: the store is not Durable: see MemoryOptions")
	}
	s := newSnapshotWriter(w)
	s.head(m)
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

func (s *snapshotWriter) head(m *Memory) {
	h := snapshotHead{
		Version: snapshotVersion, ShardBits: uint16(64 - m.shift), Tick: m.tick,
		Steady: m.now(false), Wall: time.Now().UnixNano(), Secret: m.secret.bytes(),
	}
	if m.clock != nil {
		h.OwnClock = 1
	}
	s.err = binary.Write(&s.copy, binary.LittleEndian, &h)
	sum := crc32.ChecksumIEEE(s.copy.Bytes()[len(snapshotMagic):])
	s.copy.Write(binary.LittleEndian.AppendUint32(nil, sum))
	s.flush()
}

// shard writes the entries of a shard that still matter.
func (s *snapshotWriter) shard(sh *shard) {
	s.copy.WriteByte(nextShard)
	sh.mu.Lock()
	for k := range sh.tables {
		s.table(sh, kind(k))
	}
	sh.mu.Unlock()
	s.flush()
}

func (s *snapshotWriter) table(sh *shard, k kind) {
	t := &sh.tables[k]
	if t.used == 0 {
		return
	}
	now := sh.store.now(k == clockTable)
	for at := uint64(0); at < uint64(len(t.words)); at += t.width {
		slot := t.words[at : at+t.width]
		if slot[0] == 0 || t.until(at) <= now {
			continue
		}
		s.copy.WriteByte(byte(k))
		for _, word := range slot {
			s.word(word)
		}
		if k == runTable {
			s.run(sh, run(slot[2]))
		}
	}
}

// run writes the words outside of a slot.
func (s *snapshotWriter) run(sh *shard, r run) {
	var words []int64
	if r != 0 {
		words = sh.blocks.words(r)
	}
	s.word(uint64(len(words)))
	for _, word := range words {
		s.word(uint64(word))
	}
}

func (s *snapshotWriter) word(n uint64) {
	s.copy.Write(binary.LittleEndian.AppendUint64(s.copy.AvailableBuffer(), n))
}

// flush passes on what was copied.
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

// RestoreMemory returns a store that goes on where a snapshot was written. It is
// Durable, whether the options say so or not. What would have come back meanwhile
// has come back; if the machine's clock was set back meanwhile, no time has passed.
// If the snapshot is damaged the error wraps [ErrBadSnapshot].
func RestoreMemory(r io.Reader, o *MemoryOptions) (*Memory, error) {
	m, err := restore(r, o)
	if err != nil {
		return nil, fmt.Errorf("penstock: restore: %w", err)
	}
	return m, nil
}

func restore(from io.Reader, o *MemoryOptions) (*Memory, error) {
	r := &snapshotReader{r: bufio.NewReaderSize(from, 1<<16), sum: sha256.New()}
	h, err := r.head()
	if err != nil {
		return nil, err
	}
	if o == nil {
		o = &MemoryOptions{}
	}
	m := newMemory(o, int64(orDefault(o.MaxKeys, defaultMaxKeys)), int(h.ShardBits))
	if (m.clock != nil) != (h.OwnClock != 0) || m.tick != h.Tick {
		return nil, fmt.Errorf("written on another clock: Now and Tick must be as they were")
	}
	m.secret = newSecret(h.Secret)
	m.offset = h.Steady + max(time.Now().UnixNano()-h.Wall, 0)
	if err = r.entries(m); err != nil {
		return nil, err
	}
	return m, r.end()
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
		case kind(k) < kinds && s != nil:
			err = r.entry(m, s, kind(k))
		default:
			err = fmt.Errorf("%w: %#x after %d shards", ErrBadSnapshot, k, next)
		}
		if err != nil {
			return err
		}
	}
}

// A snapshotReader reads a snapshot.
type snapshotReader struct {
	r   *bufio.Reader
	sum hash.Hash
	buf [64]byte // more than a head, a slot or a checksum has
}

// read reads some bytes, which are the reader's own until it reads again.
func (r *snapshotReader) read(n int) ([]byte, error) {
	b := r.buf[:n]
	if _, err := io.ReadFull(r.r, b); err != nil {
		return nil, cutShort(err)
	}
	r.sum.Write(b)
	return b, nil
}

// cutShort says so if a snapshot ends too early.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut short", ErrBadSnapshot)
	}
	return err
}

func (r *snapshotReader) head() (h snapshotHead, err error) {
	magic, err := r.read(len(snapshotMagic))
	if err != nil {
		return h, err
	}
	if string(magic) != snapshotMagic {
		return h, fmt.Errorf("%w: it does not begin like one", ErrBadSnapshot)
	}
	b, err := r.read(binary.Size(h) + crc32.Size)
	if err != nil {
		return h, err
	}
	fields, sum := b[:binary.Size(h)], binary.LittleEndian.Uint32(b[binary.Size(h):])
	if crc32.ChecksumIEEE(fields) != sum {
		return h, fmt.Errorf("%w: the checksum of its head is wrong", ErrBadSnapshot)
	}
	if _, err = binary.Decode(fields, binary.LittleEndian, &h); err != nil {
		return h, err
	}
	if h.Version != snapshotVersion {
		return h, fmt.Errorf("%w: version %d, and this reads version %d", ErrBadSnapshot, h.Version, snapshotVersion)
	}
	if h.ShardBits > maxShardBits || h.Tick <= 0 || h.Wall < 0 || h.Steady < 0 || h.Steady > algorithm.MaxTime {
		return h, fmt.Errorf("%w: numbers that cannot be", ErrBadSnapshot)
	}
	return h, nil
}

// entry reads an entry and puts it into its shard, if it still matters.
func (r *snapshotReader) entry(m *Memory, s *shard, k kind) error {
	b, err := r.read(int(slotWidths[k]) * 8)
	if err != nil {
		return err
	}
	var slot [maxSlotWidth]uint64
	for i := range slotWidths[k] {
		slot[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	if k != grantTable && s != &m.overflow && s != m.shard(slot[0]) {
		return fmt.Errorf("%w: an entry that nobody would find", ErrBadSnapshot)
	}
	words, err := r.run(k, slot[3])
	if err != nil {
		return err
	}
	return s.restore(k, slot[:slotWidths[k]], words)
}

// run reads the words outside of a slot, of which a part is in use.
func (r *snapshotReader) run(k kind, part uint64) ([]int64, error) {
	if k != runTable {
		return nil, nil
	}
	b, err := r.read(8)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxRunWords || part>>32 > 0 && part>>32 >= n || part&(1<<32-1) > n {
		return nil, fmt.Errorf("%w: %d words, and more of them in use", ErrBadSnapshot, n)
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

// end compares the checksum, behind which there is nothing.
func (r *snapshotReader) end() error {
	want := r.sum.Sum(nil)
	got, err := r.read(len(want))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: the checksum is wrong", ErrBadSnapshot)
	}
	if _, err := r.r.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: there is something behind its end", ErrBadSnapshot)
	}
	return nil
}

// restore puts an entry into a shard that nobody uses yet.
func (s *shard) restore(k kind, slot []uint64, words []int64) error {
	now := s.store.now(k == clockTable)
	t := &s.tables[k]
	if int64(slot[1]&^signBit) <= now {
		return nil
	}
	if slot[0] == 0 || t.slot(slot[0]) != nil {
		return fmt.Errorf("%w: an entry of nobody, or the second of somebody", ErrBadSnapshot)
	}
	at, ok := s.place(k, slot[0], now)
	if !ok {
		return fmt.Errorf("more keys than MaxKeys, %d, has room for", s.places.most)
	}
	copy(t.words[at:at+t.width], slot)
	t.firstStale = min(t.firstStale, t.until(at))
	if k != runTable || len(words) == 0 {
		return nil
	}
	r := s.blocks.alloc(len(words))
	if r == 0 {
		return fmt.Errorf("more bytes of logs than MaxBytes, %d, has room for", s.blocks.most)
	}
	copy(s.blocks.words(r), words)
	t.words[at+2] = uint64(r)
	return nil
}
