package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock"
)

// A key in Redis is made of the prefix, the caller's key and the limit's identity.
// No two states share one. The caller's key is the hash tag, so all states of it are
// in one slot:
//
//	p{user:42}Xk3_a9Q       the key user:42
//	p.a{user:42}bXk3_a9Q    the key a{user:42}b, which has its own tag
//	p#{R4…}Xk3_a9Q          a key of more than 256 bytes, by its hash
//	p#{user:42}R4…Xk3_a9Q   the same, with its own tag
//	p?{user:42}bT0…         the key user:42 under an untrusted limit; likewise p?. and p?#
//	p!{user:42}9sW…         the record of a grant under an ID
//
// The characters behind the prefix tell these forms apart, and cannot be part of a
// prefix.

const (
	// stateVersion is part of every limit's identity, so that states of another
	// layout have other keys.
	stateVersion = 3

	// identityLen is how many characters identify a limit, of six bits each. Two
	// limits have the same identity with probability 2^-42. A process that knows
	// both rejects the second; see identityTable. With seven characters, the name
	// for a key of 20 bytes has 30, the most before Redis allocates another 16.
	identityLen = 7

	// untrustedMark is behind the prefix in the keys of untrusted limits.
	untrustedMark = "?"

	// untrustedLen is how many characters identify an untrusted limit: 132 bits,
	// because its caller can try many limits to find two with the same identity.
	untrustedLen = 22

	// maxKeyLen is how long a key may be before it is replaced by its hash.
	maxKeyLen = 256
)

// An identity distinguishes the state of a limit from those of other limits on the
// same key.
type identity struct {
	text  string // in the names of keys
	mark  string // behind the prefix: untrustedMark or nothing
	check uint64 // more bits of the same hash, to detect limits with equal texts
}

func identify(l penstock.Limit) identity {
	n := l.Identity()
	text := fmt.Appendf(nil, "%d %t %q %d %d %d %d %d %d %d %q",
		stateVersion, n.Untrusted, n.Name, n.Algorithm, n.Count, n.Period, n.Burst, n.Buckets, n.Align, n.Offset, n.Zone)
	if n.HasPermits() { // other limits keep their keys
		text = fmt.Appendf(text, " permits=%d", permitsVersion)
	}
	if n.Debt != 0 { // likewise
		text = fmt.Appendf(text, " debt=%d", n.Debt)
	}
	sum := sha256.Sum256(text)
	name, check := base64.RawURLEncoding.EncodeToString(sum[:]), binary.LittleEndian.Uint64(sum[len(sum)-8:])
	if l.Untrusted {
		return identity{name[:untrustedLen], untrustedMark, check}
	}
	return identity{name[:identityLen], "", check}
}

// stateKey returns the Redis key of a key's state under a limit. Untrusted limits
// have forms of their own, so no choice of key and limit leads to the state of a
// trusted one.
func stateKey(prefix, key string, id identity) string {
	tag, mark := hashTag(key), id.mark
	switch {
	case len(key) <= maxKeyLen && tag != "":
		return prefix + mark + "." + key + id.text
	case len(key) <= maxKeyLen && key[0] != '}':
		return prefix + mark + "{" + key + "}" + id.text
	case tag == "":
		return prefix + mark + "#{" + hash(key) + "}" + id.text
	case len(tag) > maxKeyLen:
		tag = hash(tag)
	}
	return prefix + mark + "#{" + tag + "}" + hash(key) + id.text
}

// recordKey returns the Redis key of the record of a grant. It is in the slot of the
// state that the grant was charged to.
func recordKey(prefix, state, id string) string {
	var room [256]byte
	named := strconv.AppendInt(append(room[:0], recordVersion+" "...), int64(len(state)), 10)
	named = append(append(append(named, ' '), state...), id...)
	sum := sha256.Sum256(named)
	base64.RawURLEncoding.Encode(room[:], sum[:])
	return prefix + "!{" + hashTag(state) + "}" + string(room[:recordLen])
}

// recordVersion is part of every record's name, so that records of another layout have
// other names.
const recordVersion = "v2"

// recordLen is how many characters identify a record: 132 bits.
const recordLen = 22

// permitsVersion distinguishes the layouts of permits.
const permitsVersion = 3

// permitOf returns the name of permits within a state: 64 bits of the hash of their ID. It
// is in every permit, of which one state can have thousands. A caller that finds two IDs
// with one name gains nothing that it would not by using one ID twice.
func permitOf(state, id string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s%s", len(state), state, id))
	if permit := string(sum[:permitLen]); permit != noPermit {
		return permit
	}
	return string(sum[permitLen : 2*permitLen])
}

// noPermit marks the place of a permit that was released.
const noPermit = "\x00\x00\x00\x00\x00\x00\x00\x00"

// permitLen is how many bytes name permits.
const permitLen = 8

// hashTag returns the part of a key that determines its slot, or "" if the whole
// key does.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	if tag, _, ok := strings.Cut(rest, "}"); ok {
		return tag
	}
	return ""
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// slots is how many slots a Cluster has.
const slots = 16384

// slotOf returns the slot of a key that has a hash tag: the CRC-16 of the tag.
func slotOf(key string) uint16 {
	crc := uint16(0)
	for _, b := range []byte(hashTag(key)) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^b]
	}
	return crc % slots
}

// crcTable has the CRC-16 of each byte.
var crcTable = func() (table [256]uint16) {
	for b := range table {
		crc := uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[b] = crc
	}
	return table
}()

// slotsPerShard is how many consecutive slots form one shard. Nodes own ranges of
// slots, so a shard is nearly always on one node.
const slotsPerShard = 256

// Shards returns into how many parts the keys are divided that can be unavailable
// independently: one, or in a Cluster 64 ranges of slots. [penstock.WithFallback]
// uses it.
func (s *Store) Shards() int {
	if s.client.Sharded() {
		return slots / slotsPerShard
	}
	return 1
}

// ShardOf returns the shard of a key.
func (s *Store) ShardOf(key string) int {
	if key == "" || !s.client.Sharded() {
		return 0
	}
	return int(slotOf(stateKey("", key, identity{}))) / slotsPerShard
}
