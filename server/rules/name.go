package rules

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// The name of a rule is where it stands: the domain, then each node's key and,
// after an equals sign, its value, with slashes between them. A backslash goes
// before a backslash, slash or equals sign that belongs to a part, so no two
// places have the same name.

func appendName(name []byte, key, value string) []byte {
	name = appendEscaped(append(name, '/'), key, '/')
	if value != "" {
		name = appendEscaped(append(name, '='), value, '/')
	}
	return name
}

// AppendKey appends the key of a descriptor: each entry's key, an equals sign and
// its value, with bars between the entries. A backslash goes before a backslash,
// bar or equals sign that belongs to a part, so different descriptors never make
// the same key. [Domain.Match] makes its keys like this; callers need it only for a
// descriptor that brings its own limit.
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
	buf = appendEscaped(buf, key, '|')
	return appendEscaped(append(buf, '='), value, '|')
}

// appendEscaped appends a part with a backslash before what would end it: the
// separator, the equals sign and the backslash itself.
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
	maxLimitName = 64 // bytes, as penstock.Limit.Validate has it
	hashMark     = `\#`
	hashBytes    = 12 // 16 characters
)

// limitName returns the name of a rule's limit: the rule's own, or if that is too
// long its beginning and a hash of the whole. The mark between them is not found in
// any rule's name, where a backslash is only ever before what it escapes. So
// different rules have different limits, and a rule's stays the same over reloads.
func limitName(rule string) string {
	if len(rule) <= maxLimitName {
		return rule
	}
	sum := sha256.Sum256([]byte(rule))
	hash := base64.RawURLEncoding.EncodeToString(sum[:hashBytes])
	prefix := cutRunes(rule, maxLimitName-len(hashMark)-len(hash))
	return strings.TrimRight(prefix, `\`) + hashMark + hash
}
