package respapi

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// Bounds of a request, whatever more the engine accepts from Envoy: its requests follow from a
// configuration, which may be large.
const (
	maxRequests = 64 // requests, or descriptors of a request
	maxEntries  = 16 // entries of a descriptor
)

// takeHelp is the reply to PENSTOCK.TAKE HELP, and the grammar that parseTake accepts.
var takeHelp = []string{
	"PENSTOCK.TAKE KEY key LIMIT limit [COST n | RESET] [ID id [HOLD ms]] [ATMOST | OVERDRAW] [MAXDELAY ms] [KEEPFREE n] [NEWID]",
	"    Takes units of a key under a limit such as \"10/1m burst=5\".",
	"PENSTOCK.TAKE DOMAIN domain k v [k v ...] [COST n | RESET] [ID id] [ATMOST] [MAXDELAY ms] [KEEPFREE n]",
	"    Takes units by the rules of a domain, for one descriptor.",
	"PENSTOCK.TAKE [COST n] [ID id] [ATMOST] [MAXDELAY ms] [KEEPFREE n] DOMAIN domain ENTRIES n k v [k v ...] [COST n | RESET] [ENTRIES ...]",
	"    The same for several descriptors: all of them or none.",
	"PENSTOCK.SETTLE KEY key LIMIT limit ID id COST n",
	"PENSTOCK.SETTLE ID id DOMAIN domain k v [k v ...] COST n",
	"    Makes what was charged under the ID equal to n, once that is known. With DOMAIN, the rules need settle.",
	"COST is 1 by default; 0 peeks, below 0 refunds. RESET resets.",
	"Words are not case-sensitive. An entry whose key is one of these words needs ENTRIES.",
}

// A takeCall is a PENSTOCK.TAKE or PENSTOCK.SETTLE with its arguments parsed. The cost of its
// request is that of all descriptors without a cost of their own.
type takeCall struct {
	takecall.Call
	words   takeWord // that the command has
	hasCost bool     // the last descriptor has a cost of its own
	costs   int      // how many descriptors have one
}

// A takeWord is a set of the words that structure a PENSTOCK.TAKE.
type takeWord uint16

const (
	wordKey takeWord = 1 << iota
	wordLimit
	wordCost
	wordReset
	wordID
	wordHold
	wordAtMost
	wordOverdraw
	wordMaxDelay
	wordKeepFree
	wordNewID
	wordDomain
	wordEntries

	limitWords = wordKey | wordLimit | wordHold | wordOverdraw | wordNewID // have no meaning by rules
	ruleWords  = wordDomain | wordEntries
)

// takeWords are in the order of the bits above.
var takeWords = [...]string{"KEY", "LIMIT", "COST", "RESET", "ID", "HOLD", "ATMOST", "OVERDRAW", "MAXDELAY", "KEEPFREE", "NEWID", "DOMAIN", "ENTRIES"}

// takeWordOf returns the word that an argument is, in any case, or 0.
func takeWordOf(arg []byte) takeWord {
	if len(arg) > len("MAXDELAY") {
		return 0
	}
	for i, word := range takeWords {
		if strings.EqualFold(string(arg), word) {
			return 1 << i
		}
	}
	return 0
}

// has reports whether the set has at least one of the words.
func (w takeWord) has(words takeWord) bool { return w&words != 0 }

// String returns the first word of the set.
func (w takeWord) String() string {
	for i, word := range takeWords {
		if w.has(1 << i) {
			return word
		}
	}
	return ""
}

// maxDescriptorLength bounds all keys and values of a descriptor together.
const maxDescriptorLength = maxKey

// parseTake parses the arguments of PENSTOCK.TAKE after its name. The strings in the call
// are copies: the arguments share the read buffer's memory.
func parseTake(args [][]byte, maxDescriptors int) (*takeCall, error) {
	t := &takeCall{Call: takecall.Call{Request: penstock.Request{Cost: 1}, Hurried: true}}
	for len(args) > 0 {
		word := takeWordOf(args[0])
		if word == 0 {
			return nil, t.unknownWord(args[0])
		}
		n, err := t.parseWord(word, args[1:])
		if err != nil {
			return nil, err
		}
		args = args[1+n:]
	}
	return t, t.check(maxDescriptors)
}

// unknownWord returns the error of an argument where a word is expected. After a limit it is
// mostly a part of the limit that was not quoted.
func (t *takeCall) unknownWord(arg []byte) error {
	text := "unknown word '" + printedWord(arg) + "'; see PENSTOCK.TAKE HELP"
	if t.words.has(wordLimit) && limitWord(arg) {
		text = "unknown word '" + printedWord(arg) + "': a limit is one argument; quote it, as in \"10/1m burst=5\""
	}
	return argumentError(text)
}

// limitWord reports whether an argument looks like a word of a limit: burst=5, sliding-log.
func limitWord(arg []byte) bool {
	return bytes.ContainsAny(arg, "=-")
}

// maxPrintedWord bounds the bytes of an argument that errors repeat.
const maxPrintedWord = 128

// printedWord returns an argument as errors repeat it.
func printedWord(arg []byte) string { return printable(arg[:min(len(arg), maxPrintedWord)]) }

// parseWord parses what follows a word, and returns the number of arguments used.
func (t *takeCall) parseWord(word takeWord, args [][]byte) (n int, err error) {
	if word.has(wordCost | wordReset) {
		return t.parseCost(word, args)
	}
	if t.words.has(word) && word != wordEntries {
		return 0, argumentError(word.String() + " occurs twice")
	}
	t.words |= word
	switch {
	case word.has(wordAtMost | wordOverdraw | wordNewID):
		r := &t.Request
		r.AtMost, r.Overdraw, r.NewID = t.words.has(wordAtMost), t.words.has(wordOverdraw), t.words.has(wordNewID)
		return 0, nil
	case word == wordEntries:
		return t.parseEntries(args)
	case len(args) == 0:
		return 0, argumentError(word.String() + " needs a value")
	case word == wordDomain:
		return t.parseDomain(args)
	}
	return 1, t.parseValue(word, args[0])
}

// parseValue parses the value of a word that has one.
func (t *takeCall) parseValue(word takeWord, value []byte) error {
	switch word {
	case wordKey:
		t.Request.Key = string(value)
		return validateKey(value)
	case wordLimit:
		t.Limit = string(value)
	case wordID:
		t.Request.ID = string(value)
		return validateLength("ID", len(value), maxKey)
	case wordMaxDelay, wordHold:
		ms, ok := parseNatural(value)
		if !ok || ms > math.MaxInt64/int64(time.Millisecond) {
			return argumentError(word.String() + ": want milliseconds, 0 or more")
		}
		if word == wordHold {
			t.Request.Hold = time.Duration(ms) * time.Millisecond
		} else {
			t.Request.MaxDelay = time.Duration(ms) * time.Millisecond
		}
	case wordKeepFree:
		n, ok := parseNatural(value)
		if !ok {
			return argumentError("KEEPFREE: want a number of units, 0 or more")
		}
		t.Request.KeepFree = n
	}
	return nil
}

func validateLength(what string, n, most int) error {
	switch {
	case n == 0:
		return argumentError(what + " is empty")
	case n > most:
		return argumentError(fmt.Sprintf("%s of %d bytes: must be at most %d", what, n, most))
	}
	return nil
}

// parseCost parses COST n or RESET. After the entries of a descriptor it is the cost of that
// descriptor, otherwise that of the command.
func (t *takeCall) parseCost(word takeWord, args [][]byte) (n int, err error) {
	cost := penstock.Reset
	if word == wordCost {
		if n = 1; len(args) == 0 {
			return 0, argumentError("COST needs a value")
		}
		if cost, err = strconv.ParseInt(string(args[0]), 10, 64); err != nil {
			return 0, argumentError("COST: " + outOfRange)
		}
	}
	switch last := len(t.Descriptors) - 1; {
	case last >= 0 && !t.hasCost:
		t.Descriptors[last].Cost, t.hasCost = cost, true
		t.costs++
	case last < 0 && !t.words.has(wordCost|wordReset):
		t.Request.Cost = cost
		t.words |= word
	default:
		return 0, argumentError(word.String() + ": the cost is set already")
	}
	return n, nil
}

// parseDomain parses the name of a domain and the entries that follow it without ENTRIES:
// pairs of a key and a value, up to a key that is one of the words. Only keys can be words,
// so no value changes what the command means.
func (t *takeCall) parseDomain(args [][]byte) (n int, err error) {
	t.Domain = string(args[0])
	if err := validateLength("DOMAIN", len(args[0]), maxKey); err != nil {
		return 0, err
	}
	for n = 1; n < len(args) && takeWordOf(args[n]) == 0; n += 2 {
		if n+1 == len(args) {
			return 0, argumentError("entry '" + printedWord(args[n]) + "' has no value: want a key and a value, as in user 42")
		}
	}
	if n == 1 {
		return 1, nil
	}
	return n, t.addDescriptor(args[1:n])
}

// parseEntries parses the number of entries of a descriptor, and the entries.
func (t *takeCall) parseEntries(args [][]byte) (n int, err error) {
	if !t.words.has(wordDomain) {
		return 0, argumentError("ENTRIES before DOMAIN")
	}
	if len(args) == 0 {
		return 0, argumentError("ENTRIES needs a value")
	}
	count, ok := parseNatural(args[0])
	if !ok || count < 1 || count > maxEntries {
		return 0, argumentError(fmt.Sprintf("ENTRIES: want a number from 1 to %d", maxEntries))
	}
	n = 1 + 2*int(count)
	if len(args) < n {
		return 0, argumentError(fmt.Sprintf("ENTRIES %d: want %[1]d keys with their values", count))
	}
	return n, t.addDescriptor(args[1:n])
}

// addDescriptor adds a descriptor of pairs of a key and a value.
func (t *takeCall) addDescriptor(pairs [][]byte) error {
	if len(pairs)/2 > maxEntries {
		return argumentError(fmt.Sprintf("%d entries: must be at most %d", len(pairs)/2, maxEntries))
	}
	d := engine.Descriptor{Entries: make([]rules.Entry, 0, len(pairs)/2), Cost: t.Request.Cost, Permits: engine.RenewPermits}
	length := 0
	for i := 0; i < len(pairs); i += 2 {
		if len(pairs[i]) == 0 {
			return argumentError("an entry has an empty key")
		}
		length += len(pairs[i]) + len(pairs[i+1])
		d.Entries = append(d.Entries, rules.Entry{Key: string(pairs[i]), Value: string(pairs[i+1])})
	}
	t.Descriptors, t.hasCost = append(t.Descriptors, d), false
	return validateLength("a descriptor", length, maxDescriptorLength)
}

// check returns an error if words are missing or contradict each other.
func (t *takeCall) check(maxDescriptors int) error {
	switch rules, limit := t.words.has(ruleWords), t.words&limitWords; {
	case rules && limit != 0:
		return argumentError(limit.String() + " cannot be combined with DOMAIN; if it is the key of an entry, write ENTRIES n before the entries")
	case rules && len(t.Descriptors) == 0:
		return argumentError("DOMAIN needs entries: a key and a value")
	case len(t.Descriptors) > maxDescriptors:
		return argumentError(fmt.Sprintf("%d descriptors: must be at most %d", len(t.Descriptors), maxDescriptors))
	case !rules && limit&(wordKey|wordLimit) != wordKey|wordLimit:
		return argumentError("want KEY and LIMIT, or DOMAIN and entries; see PENSTOCK.TAKE HELP")
	}
	return nil
}

// checkSettle returns an error if the command cannot settle what was taken.
func (t *takeCall) checkSettle() error {
	switch {
	case !t.words.has(wordID):
		return argumentError("want the ID of what was taken; see PENSTOCK.TAKE HELP")
	case !t.words.has(wordCost) && (t.costs == 0 || t.costs < len(t.Descriptors)):
		return argumentError("want COST and the amount that was used; see PENSTOCK.TAKE HELP")
	case t.Request.Cost < 0 || slices.ContainsFunc(t.Descriptors, func(d engine.Descriptor) bool { return d.Cost < 0 }):
		return argumentError("COST: must not be negative")
	}
	return nil
}
