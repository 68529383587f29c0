package penstock

import (
	"encoding/binary"
	"math/bits"
	"strings"
)

// A secret is the key of a hash that is the same in every process which knows it.
// Nobody else can choose keys that collide. It is SipHash-2-4, and takes a few
// times as long as the hash of a process's own.
type secret struct{ k0, k1 uint64 }

// secretLen is how many bytes a secret is made of.
const secretLen = 16

func newSecret(b [secretLen]byte) *secret {
	return &secret{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

func (s *secret) bytes() (b [secretLen]byte) {
	binary.LittleEndian.PutUint64(b[:8], s.k0)
	binary.LittleEndian.PutUint64(b[8:], s.k1)
	return b
}

// sum returns the hash of a text.
func (s *secret) sum(text string) uint64 {
	v := sipState{s.k0 ^ 0x736f6d6570736575, s.k1 ^ 0x646f72616e646f6d, s.k0 ^ 0x6c7967656e657261, s.k1 ^ 0x7465646279746573}
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

// wordAt returns the first eight bytes of a text.
func wordAt(t string) uint64 {
	return uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
}

type sipState struct{ v0, v1, v2, v3 uint64 }

func (v *sipState) block(m uint64) {
	v.v3 ^= m
	v.round()
	v.round()
	v.v0 ^= m
}

func (v *sipState) round() {
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

// identify returns the hash of what a limit's state belongs to.
func (s *secret) identify(l Limit) uint64 {
	var b strings.Builder
	for _, n := range [...]int64{
		int64(l.Algorithm), int64(l.Align), l.Count, int64(l.Period), l.Burst, int64(l.Buckets), int64(l.Offset),
		int64(len(l.Name)),
	} {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], uint64(n))
		b.Write(word[:])
	}
	b.WriteString(l.Name)
	b.WriteString(l.Zone)
	return s.sum(b.String())
}
