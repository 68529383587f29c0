package rules

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// appendName appends a node to the name of a rule. The name is the rule's path: the
// domain, then each node's key and, after an equals sign, its value, separated by
// slashes. A backslash, slash or equals sign within a part is escaped by a backslash,
// so no two paths have the same name.
func appendName(name []byte, key, value string) []byte {
	name = appendEscaped(append(name, '/'), key, '/')
	if value != "" {
		name = appendEscaped(append(name, '='), value, '/')
	}
	return name
}

// alsoMark is between the name of a rule and the period of a further limit. No path has it, because
// no key is empty.
const alsoMark = "//"

// AppendKey appends the key of a descriptor: each entry's key, an equals sign and
// its value, with bars between the entries. A backslash, bar or equals sign within a
// part is escaped by a backslash, so different descriptors never have the same key.
// [Domain.Match] builds its keys like this; callers need AppendKey only for a
// descriptor that carries its own limit.
func AppendKey(buf []byte, entries []Entry) []byte {
	for i, e := range entries {
		if i > 0 {
			buf = append(buf, '|')
		}
		buf = appendEntry(buf, e.Key, e.Value)
	}
	return buf
}

func appendEntry(buf []byte, key, value string) []byte {
	buf = appendKeyPart(buf, key)
	return appendKeyPart(append(buf, '='), value)
}

// appendKeyPart appends a part of a key, as appendEscaped does.
func appendKeyPart(buf []byte, part string) []byte {
	for i := range len(part) {
		if isEscaped[part[i]] {
			return appendEscaped(buf, part, '|')
		}
	}
	return append(buf, part...)
}

// isEscaped has the bytes that are escaped in keys. Every byte of every request is looked up.
var isEscaped = [256]bool{'|': true, '=': true, '\\': true}

// appendEscaped appends a part, with a backslash before each separator, equals sign
// and backslash.
func appendEscaped(buf []byte, part string, separator byte) []byte {
	done := 0
	for i := range len(part) {
		if c := part[i]; c == separator || c == '=' || c == '\\' {
			buf = append(buf, part[done:i]...)
			buf = append(buf, '\\')
			done = i
		}
	}
	return append(buf, part[done:]...)
}

const (
	maxLimitName = 64 // bytes, as penstock.Limit.Validate allows
	hashMark     = `\#`
	hashBytes    = 12 // 16 characters
)

// limitName returns the name of a rule's limit: the rule's own name or, if that is too
// long, its beginning and a hash of the whole. No rule's name has the mark between
// them: there a backslash only precedes a character to escape, and '#' is none. So
// different rules have different limit names, and a rule's stays the same over reloads.
func limitName(rule string) string {
	if len(rule) <= maxLimitName {
		return rule
	}
	sum := sha256.Sum256([]byte(rule))
	hash := base64.RawURLEncoding.EncodeToString(sum[:hashBytes])
	prefix := cutRunes(rule, maxLimitName-len(hashMark)-len(hash))
	return strings.TrimRight(prefix, `\`) + hashMark + hash
}

// maxKey is the longest key that is sent to a store. Longer keys are hashed rather than
// rejected: their values come from clients, and Envoy allows requests whose decision
// fails.
const maxKey = 4 << 10

// ShortenKey replaces the key that begins at start by its hash, if it is too long, so that a
// client cannot escape its limit with a long key. No other key of a rule begins with a bar.
func ShortenKey(keys []byte, start int) []byte {
	if len(keys)-start <= maxKey { // as nearly all are; no call is needed to find out
		return keys
	}
	return hashKey(keys, start)
}

func hashKey(keys []byte, start int) []byte {
	sum := sha256.Sum256(keys[start:])
	keys = append(keys[:start], "|sha256:"...)
	return hex.AppendEncode(keys, sum[:])
}
