package snapshot

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

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A Reader reads a snapshot.
type Reader struct {
	r      *bufio.Reader
	kinds  Kinds
	sum    hash.Hash
	shards int      // that follow
	shard  int      // of the last entry
	buf    [64]byte // fits a header, the words of a slot or a checksum
}

// An Entry is one of a shard. Its words are valid until the next is read.
type Entry struct {
	Shard int // the last one is that of the overflow buckets
	Kind  byte
	Words []uint64
	Block []int64
}

// NewReader reads the header of a snapshot. If the snapshot is damaged, the error here and
// in what follows wraps ErrBad.
func NewReader(from io.Reader, kinds Kinds) (*Reader, Header, error) {
	r := &Reader{r: bufio.NewReaderSize(from, 1<<16), kinds: kinds, sum: sha256.New(), shard: -1}
	h, err := r.header()
	if err != nil {
		return nil, Header{}, err
	}
	r.shards = 1<<h.ShardBits + 1
	return r, Header{
		CustomClock: h.CustomClock != 0, ShardBits: h.ShardBits, Tick: h.Tick, Mono: h.Mono, Wall: h.Wall, Key: h.Key,
	}, nil
}

func (r *Reader) header() (h header, err error) {
	name, err := r.read(len(magic))
	if err != nil {
		return h, err
	}
	if string(name) != magic {
		return h, fmt.Errorf("%w: not a snapshot", ErrBad)
	}
	b, err := r.read(binary.Size(h) + crc32.Size)
	if err != nil {
		return h, err
	}
	fields, sum := b[:binary.Size(h)], binary.LittleEndian.Uint32(b[binary.Size(h):])
	if crc32.ChecksumIEEE(fields) != sum {
		return h, fmt.Errorf("%w: wrong header checksum", ErrBad)
	}
	if _, err = binary.Decode(fields, binary.LittleEndian, &h); err != nil {
		return h, err
	}
	switch {
	case h.Version != version:
		return h, fmt.Errorf("%w: %d, and this reads %d", ErrVersion, h.Version, version)
	case h.ShardBits > MaxShardBits || h.Tick <= 0 || h.Wall < 0 || h.Mono < 0 || h.Mono > algorithm.MaxTime:
		return h, fmt.Errorf("%w: impossible values in the header", ErrBad)
	}
	return h, nil
}

// read reads n bytes, which are valid until the next read.
func (r *Reader) read(n int) ([]byte, error) {
	b := r.buf[:n]
	if _, err := io.ReadFull(r.r, b); err != nil {
		return nil, asTruncated(err)
	}
	r.sum.Write(b)
	return b, nil
}

// asTruncated turns the end of the input into an ErrBad.
func asTruncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: truncated", ErrBad)
	}
	return err
}

// Next reads the next entry. After the last it returns io.EOF, if the checksum is right and
// nothing follows.
func (r *Reader) Next(e *Entry) error {
	for {
		b, err := r.read(1)
		if err != nil {
			return err
		}
		switch mark := b[0]; {
		case mark == nextShard && r.shard+1 < r.shards:
			r.shard++
		case mark == lastEntry && r.shard+1 == r.shards:
			return r.end()
		case int(mark) < len(r.kinds) && r.shard >= 0:
			e.Shard, e.Kind = r.shard, mark
			return r.entry(e)
		default:
			return fmt.Errorf("%w: %#x after %d shards", ErrBad, mark, r.shard+1)
		}
	}
}

func (r *Reader) entry(e *Entry) error {
	k := r.kinds[e.Kind]
	e.Words, e.Block = e.Words[:0], e.Block[:0]
	b, err := r.read(8 * k.Words)
	if err != nil {
		return err
	}
	for ; len(b) > 0; b = b[8:] {
		e.Words = append(e.Words, binary.LittleEndian.Uint64(b))
	}
	if !k.HasBlock {
		return nil
	}
	return r.block(e)
}

func (r *Reader) block(e *Entry) error {
	b, err := r.read(8)
	if err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxBlockWords {
		return fmt.Errorf("%w: impossible length of a block: %d words", ErrBad, n)
	}
	for range n {
		if b, err = r.read(8); err != nil {
			return err
		}
		e.Block = append(e.Block, int64(binary.LittleEndian.Uint64(b)))
	}
	return nil
}

// end verifies the checksum, and that the input ends there.
func (r *Reader) end() error {
	want := r.sum.Sum(nil)
	got, err := r.read(len(want))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: wrong checksum", ErrBad)
	}
	if _, err := r.r.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: data after the end", ErrBad)
	}
	return io.EOF
}
