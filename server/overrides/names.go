package overrides

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/bits"
	"strings"

	"github.com/penstock-io/penstock"
)

// LimitOf returns a limit as the limit of a key of a rule. Its name is that of the rule's
// limit, so that both share their state if that counts units. Buckets count time, which is
// worth another number of units at another rate: each rate has a name of its own, and the
// units are carried over.
func LimitOf(ofRule, l penstock.Limit) penstock.Limit {
	l.Name = ofRule.Name
	if l.IsBucket() && !(l.Algorithm == ofRule.Algorithm && sameRate(l, ofRule)) {
		l.Name = LimitName(ofRule.Name, fmt.Sprintf("%d/%d", l.Count, l.Period))
	}
	return l
}

// sameRate reports whether two limits have the same count per time.
func sameRate(a, b penstock.Limit) bool {
	high1, low1 := bits.Mul64(uint64(a.Count), uint64(b.Period))
	high2, low2 := bits.Mul64(uint64(b.Count), uint64(a.Period))
	return high1 == high2 && low1 == low2
}

const (
	maxLimitName = 64 // bytes, as penstock.Limit.Validate allows
	limitMark    = `\~`
	limitHash    = 11 // characters of 8 bytes
)

// LimitName returns the name of a limit that replaces another one by name. No rule has
// such a name: there a backslash only precedes characters to escape, and '~' is none.
func LimitName(name, distinct string) string {
	sum := sha256.Sum256([]byte(name + "\x00" + distinct))
	return LimitPrefix(name) + base64.RawURLEncoding.EncodeToString(sum[:8])
}

// LimitPrefix returns how the names of limits begin that replace one of that name. The
// rest of such a name is always as long.
func LimitPrefix(name string) string {
	name = name[:min(len(name), maxLimitName-len(limitMark)-limitHash)]
	return strings.ToValidUTF8(name, "") + limitMark
}

// PrefixOf returns the [LimitPrefix] of a name that [LimitName] made.
func PrefixOf(name string) (prefix string, ok bool) {
	if len(name) < limitHash {
		return "", false
	}
	prefix = name[:len(name)-limitHash]
	return prefix, strings.HasSuffix(prefix, limitMark)
}
