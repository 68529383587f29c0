package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"io"
)

// A Writer writes a snapshot, and keeps the first error.
type Writer struct {
	w     *bufio.Writer
	kinds Kinds
	sum   hash.Hash
	copy  bytes.Buffer // of one shard: adding to it never waits for a file
	err   error
}

// NewWriter begins a snapshot.
func NewWriter(to io.Writer, h Header, kinds Kinds) *Writer {
	w := &Writer{w: bufio.NewWriterSize(to, 1<<16), kinds: kinds, sum: sha256.New()}
	written := header{Version: version, ShardBits: h.ShardBits, Tick: h.Tick, Mono: h.Mono, Wall: h.Wall, Key: h.Key}
	if h.CustomClock {
		written.CustomClock = 1
	}
	w.copy.WriteString(magic)
	w.err = binary.Write(&w.copy, binary.LittleEndian, &written)
	sum := crc32.ChecksumIEEE(w.copy.Bytes()[len(magic):])
	w.copy.Write(binary.LittleEndian.AppendUint32(nil, sum))
	return w
}

// NextShard writes the entries of the last shard, and begins the next.
func (w *Writer) NextShard() {
	w.flush()
	w.copy.WriteByte(nextShard)
}

// Add copies an entry of the shard, to be written later: the shard may be locked.
func (w *Writer) Add(kind byte, words []uint64, block []int64) {
	w.copy.WriteByte(kind)
	w.copy.Write(w.kinds[kind].Append(w.copy.AvailableBuffer(), words, block))
}

// flush adds the copy to the checksum, writes it and empties it.
func (w *Writer) flush() {
	w.sum.Write(w.copy.Bytes())
	if w.err == nil {
		_, w.err = w.copy.WriteTo(w.w)
	}
	w.copy.Reset()
}

// Close ends the snapshot. It returns the first error of all that was written.
func (w *Writer) Close() error {
	w.copy.WriteByte(lastEntry)
	w.flush()
	if w.err == nil {
		_, w.err = w.w.Write(w.sum.Sum(nil))
	}
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}
