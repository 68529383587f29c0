// Package snapshot is how the content of a store in memory is written to a file.
//
// A snapshot is little-endian bytes: a header, the entries of all tables, shard by shard, and a
// SHA-256 of all that. An entry is the kind of its table and the words of its slot, followed for a
// table with blocks by the length and the words of its block. What the words mean is the store's.
package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrBad means that a snapshot is damaged, or not one that this version can read.
var ErrBad = errors.New("bad snapshot")

// ErrVersion is the ErrBad of a snapshot that another version wrote, and that is not damaged.
var ErrVersion = fmt.Errorf("%w: of another version", ErrBad)

const (
	magic   = "penstock"
	version = 5

	// In place of the kind of a table:
	nextShard = 0xfe // entries of the next shard follow
	lastEntry = 0xff // no entry follows

	maxBlockWords = 1 << 17 // no block has more
)

// MaxShardBits bounds Header.ShardBits, and so what a reader allocates for shards.
const MaxShardBits = 14

// A Header says which store was written, and when.
type Header struct {
	CustomClock bool   // whether its times are those of a clock that its user passed
	ShardBits   uint16 // it has 1<<ShardBits shards, and one for the overflow buckets
	Tick        int64
	Mono        int64 // monotonic clock when the snapshot began
	Wall        int64 // wall clock at the same time
	Key         [16]byte
}

// A header is a Header as it is written, after the magic. It has its own checksum, so that damage
// is not mistaken for another clock.
type header struct {
	Version     uint32
	CustomClock uint16
	ShardBits   uint16
	Tick        int64
	Mono        int64
	Wall        int64
	Key         [16]byte
}

// Kinds says what an entry of each kind of table consists of.
type Kinds []Kind

// A Kind is a number of words, and whether the words of a block follow.
type Kind struct {
	Words    int
	HasBlock bool
}

// Append appends an entry.
func (k Kind) Append(b []byte, words []uint64, block []int64) []byte {
	for _, word := range words {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	if !k.HasBlock {
		return b
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(block)))
	for _, word := range block {
		b = binary.LittleEndian.AppendUint64(b, uint64(word))
	}
	return b
}

// Decode returns the words of an entry that Append has made.
func (k Kind) Decode(b []byte) (words []uint64, block []int64, ok bool) {
	n := len(b)/8 - k.Words
	if len(b)%8 != 0 || n < 0 || n > 0 != k.HasBlock {
		return nil, nil, false
	}
	words = make([]uint64, k.Words)
	for i := range words {
		words[i], b = binary.LittleEndian.Uint64(b), b[8:]
	}
	if !k.HasBlock {
		return words, nil, true
	}
	if binary.LittleEndian.Uint64(b) != uint64(n-1) {
		return nil, nil, false
	}
	block = make([]int64, n-1)
	for i := range block {
		b = b[8:]
		block[i] = int64(binary.LittleEndian.Uint64(b))
	}
	return words, block, true
}
