// Package siphash implements SipHash-2-4, a keyed hash. Every process with the
// key computes the same hashes, and an attacker without the key cannot choose
// texts that collide. It is a few times slower than hash/maphash.
package siphash

import (
	"encoding/binary"
	"math/bits"
)

// A Key is the secret key of the hash.
type Key struct{ k0, k1 uint64 }

// KeySize is the number of bytes in a key.
const KeySize = 16

// NewKey returns the key with these bytes.
func NewKey(b [KeySize]byte) *Key {
	return &Key{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

// Bytes returns the bytes of the key.
func (k *Key) Bytes() (b [KeySize]byte) {
	binary.LittleEndian.PutUint64(b[:8], k.k0)
	binary.LittleEndian.PutUint64(b[8:], k.k1)
	return b
}

// Sum returns the hash of a text.
func (k *Key) Sum(text string) uint64 {
	v := state{k.k0 ^ 0x736f6d6570736575, k.k1 ^ 0x646f72616e646f6d, k.k0 ^ 0x6c7967656e657261, k.k1 ^ 0x7465646279746573}
	last := uint64(len(text)) << 56
	for ; len(text) >= 8; text = text[8:] {
		v.block(wordAt(text))
	}
	for i := range len(text) {
		last |= uint64(text[i]) << (8 * i)
	}
	v.block(last)
	v.v2 ^= 0xff
	for range 4 {
		v.round()
	}
	return v.v0 ^ v.v1 ^ v.v2 ^ v.v3
}

// wordAt returns the first eight bytes of a text as a word.
func wordAt(t string) uint64 {
	return uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
}

type state struct{ v0, v1, v2, v3 uint64 }

func (v *state) block(m uint64) {
	v.v3 ^= m
	v.round()
	v.round()
	v.v0 ^= m
}

func (v *state) round() {
	v.v0 += v.v1
	v.v1 = bits.RotateLeft64(v.v1, 13) ^ v.v0
	v.v0 = bits.RotateLeft64(v.v0, 32)
	v.v2 += v.v3
	v.v3 = bits.RotateLeft64(v.v3, 16) ^ v.v2
	v.v0 += v.v3
	v.v3 = bits.RotateLeft64(v.v3, 21) ^ v.v0
	v.v2 += v.v1
	v.v1 = bits.RotateLeft64(v.v1, 17) ^ v.v2
	v.v2 = bits.RotateLeft64(v.v2, 32)
}
