package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock"
)

// The name of a key in Redis says whose state it is: the prefix, the caller's
// key, and what identifies the limit. No two states share a name, and all states
// of one key share a slot, for the key is the hash tag:
//
//	p{user:42}Xk3_a       the key user:42
//	p.a{user:42}bXk3_a    the key a{user:42}b, which has a tag of its own
//	p#{R4…}Xk3_a          a key of more than 256 bytes, by its hash
//	p#{user:42}R4…Xk3_a   the same, with a tag of its own
//	p!{user:42}9sW…       the record of a grant under an ID
//
// What follows the prefix tells the forms apart, and cannot be part of it.

const (
	// stateVersion is part of every limit's identity: states of another layout
	// have other names.
	stateVersion = 1

	// identityLen is how many characters identify a limit, of six bits each.
	// Two limits that meet on one key share a name by accident once in 2^30. A
	// process that knows both refuses the second; see [plans].
	identityLen = 5

	// maxKeyLen is how long a key may be before its hash takes its place.
	maxKeyLen = 256
)

// identify returns what identifies a limit's state among those of one key.
func identify(l penstock.Limit) string {
	id := l.Identity()
	text := fmt.Sprintf("%d %q %d %d %d %d %d %d %d %q",
		stateVersion, id.Name, id.Algorithm, id.Count, id.Period, id.Burst, id.Buckets, id.Align, id.Offset, id.Zone)
	return hash(text)[:identityLen]
}

// stateKey returns the name of a key's state under a limit.
func stateKey(prefix, key, identity string) string {
	tag := hashTag(key)
	switch {
	case len(key) <= maxKeyLen && tag != "":
		return prefix + "." + key + identity
	case len(key) <= maxKeyLen && key[0] != '}':
		return prefix + "{" + key + "}" + identity
	case tag == "":
		return prefix + "#{" + hash(key) + "}" + identity
	case len(tag) > maxKeyLen:
		tag = hash(tag)
	}
	return prefix + "#{" + tag + "}" + hash(key) + identity
}

// recordKey returns the name of the record of a grant, beside the state that it
// is about.
func recordKey(prefix, state, id string) string {
	record := hash(fmt.Sprintf("%d %s%s", len(state), state, id))
	return prefix + "!{" + hashTag(state) + "}" + record[:recordLen]
}

// recordLen is how many characters tell records apart: 132 bits.
const recordLen = 22

// hashTag returns the part of a name by which a Cluster finds its slot, if that
// is not all of it.
func hashTag(name string) string {
	_, rest, ok := strings.Cut(name, "{")
	if !ok {
		return ""
	}
	tag, _, ok := strings.Cut(rest, "}")
	if !ok {
		return ""
	}
	return tag
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// slots is how many slots a Cluster has.
const slots = 16384

// slotOf returns the slot of a name, which has a tag.
func slotOf(name string) uint16 {
	crc := uint16(0)
	for _, b := range []byte(hashTag(name)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}
