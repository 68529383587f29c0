package overrides

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/rules"
)

// A Pattern says which keys of a rule an override is about: one key, all that begin with a
// text, or all whose last value is an address of a network.
type Pattern struct {
	text    string       // the key, the beginning of keys, or what precedes the address
	prefix  bool         // all keys that begin with the text
	network netip.Prefix // if valid, all keys with an address of it after the text
}

// Exact reports whether the pattern is about one key.
func (p Pattern) Exact() bool { return !p.prefix && !p.network.IsValid() }

// String returns the pattern in the form that ParsePattern reads.
func (p Pattern) String() string {
	switch {
	case p.network.IsValid():
		return p.text + p.network.String()
	case p.prefix:
		return p.text + "*"
	case strings.HasSuffix(p.text, "*"):
		return p.text[:len(p.text)-1] + `\*`
	}
	if _, slash, _, ok := networkIn(p.text); ok {
		return p.text[:slash] + `\` + p.text[slash:]
	}
	return p.text
}

// Literal returns the pattern that is about one key, whatever the key looks like: clients may
// choose it.
func Literal(key string) string { return Pattern{text: key}.String() }

// ParsePattern parses a pattern on the keys of a rule, as [rules.Domain.Match] makes them:
// a key such as "user=42"; a key whose last value is a network, such as
// "remote_address=203.0.113.0/24"; or the beginning of keys and a star, such as
// "user=tenant-7:*". A key that ends with a star itself has a backslash before it, and one
// whose last value has the form of a network has a backslash before the slash.
func ParsePattern(text string) (Pattern, error) {
	switch {
	case text == "":
		return Pattern{}, errors.New("is empty")
	case strings.HasSuffix(text, `\*`):
		return Pattern{text: text[:len(text)-2] + "*"}, nil
	case strings.HasSuffix(text, "*"):
		return Pattern{text: text[:len(text)-1], prefix: true}, nil
	}
	network, slash, escapes, ok := networkIn(text)
	switch {
	case !ok:
		return Pattern{text: text}, nil
	case escapes > 0:
		return Pattern{text: text[:slash-1] + text[slash:]}, nil
	}
	value := strings.LastIndexByte(text, '=') + 1
	return Pattern{text: text[:value], network: address.Unmap(network).Masked()}, nil
}

// networkIn returns the network that the last value of a text is without the backslashes before
// its slash, the index of the slash, and how many backslashes there are. It is not ok if the
// value is no network.
func networkIn(text string) (network netip.Prefix, slash, escapes int, ok bool) {
	value := strings.LastIndexByte(text, '=') + 1
	slash = strings.LastIndexByte(text, '/')
	if slash < value {
		return network, 0, 0, false
	}
	address := strings.TrimRight(text[value:slash], `\`)
	network, err := netip.ParsePrefix(address + text[slash:])
	return network, slash, slash - value - len(address), err == nil
}

// Resolve returns the key of an override in the form of [ParsePattern], from what an
// operator writes: the forms of [rules.Set.ParseKey], in which the last value may be a
// network, or may end with a star.
func Resolve(set *rules.Set, rule *rules.Rule, text string) (string, error) {
	p, err := ParsePattern(text)
	if err != nil {
		return "", err
	}
	switch {
	case p.network.IsValid():
		return resolveNetwork(set, rule, p)
	case p.prefix:
		return resolvePrefix(set, rule, p)
	}
	key, err := set.ParseKey(rule, p.text)
	if err != nil {
		return "", err
	}
	return Literal(key), nil
}

// resolveNetwork completes what precedes the network, by the key of its first address.
func resolveNetwork(set *rules.Set, rule *rules.Rule, p Pattern) (string, error) {
	first := p.network.Addr().String()
	key, err := set.ParseKey(rule, p.text+first)
	if err != nil {
		return "", err
	}
	before, ok := strings.CutSuffix(key, first)
	if !ok {
		return "", fmt.Errorf("%q: the last value of rule %s is no address", p.String(), rule.Name)
	}
	p.text = before
	return p.String(), nil
}

// resolvePrefix completes what precedes the prefix, by a key that begins with it. A prefix
// that ends before the last value of the rule has no such key, and must be complete.
func resolvePrefix(set *rules.Set, rule *rules.Rule, p Pattern) (string, error) {
	const more = "x"
	key, err := set.ParseKey(rule, p.text+more)
	if before, ok := strings.CutSuffix(key, more); err == nil && ok {
		p.text = before
		return p.String(), nil
	}
	_, nodes := rule.Path()
	if first := rules.AppendKey(nil, []rules.Entry{{Key: nodes[0].Key}}); p.text == "" || strings.HasPrefix(p.text, string(first)) {
		return p.String(), nil
	}
	return "", fmt.Errorf("%q is not the beginning of keys of rule %s: want %s", p.text+"*", rule.Name, rule.KeyForm())
}
