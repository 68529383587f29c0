package penstock

import (
	"strings"
	"testing"
)

// The hash is the one that its authors describe: these are the first of the
// values they give for the texts 00, 00 01, 00 01 02 … under the key 00 01 … 0f.
func TestSipHash(t *testing.T) {
	var key [secretLen]byte
	for i := range key {
		key[i] = byte(i)
	}
	s := newSecret(key)
	if s.bytes() != key {
		t.Errorf("the secret %x came back as %x", key, s.bytes())
	}
	want := []uint64{
		0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d, 0xcf2794e0277187b7,
		0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137, 0x93f5f5799a932462, 0x9e0082df0ba9e4b0,
		0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7, 0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee,
		0xa129ca6149be45e5,
	}
	var text strings.Builder
	for i, w := range want {
		if got := s.sum(text.String()); got != w {
			t.Errorf("a text of %d bytes: got %016x, want %016x", i, got, w)
		}
		text.WriteByte(byte(i))
	}
}

// Limits that do not share state have different identities.
func TestSecretIdentities(t *testing.T) {
	s := newSecret([secretLen]byte{1})
	seen := map[uint64]Limit{}
	for _, l := range []Limit{
		PerSecond(1), PerSecond(2), PerMinute(1), PerSecond(1).WithBurst(2), PerSecond(1).WithName("a"),
		PerSecond(1).WithName("a").WithAlgorithm(LeakyBucket), PerSecond(1).WithName("b"), PerSecond(1).WithAlgorithm(SlidingLog),
		{Count: 1, Algorithm: FixedWindow, Align: AlignDay},
		{Count: 1, Algorithm: FixedWindow, Align: AlignDay, Zone: "Asia/Tokyo"},
		{Count: 1, Algorithm: FixedWindow, Align: AlignDay, Name: "Asia/", Zone: "Asia/Tokyo"},
		{Count: 1, Algorithm: FixedWindow, Align: AlignDay, Offset: 1},
		{Count: 1, Period: 1e9, Algorithm: RollingWindow, Buckets: 3},
	} {
		id := s.identify(l.Identity())
		if other, ok := seen[id]; ok {
			t.Errorf("%v and %v are taken for one another", l, other)
		}
		seen[id] = l
	}
	if s.identify(PerSecond(5).WithName("a").Identity()) != s.identify(PerSecond(1).WithName("a").Identity()) {
		t.Error("two counts of one name do not share their state")
	}
}
