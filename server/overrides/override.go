// Package overrides holds what differs from a rule for single keys or ranges of keys: another
// limit, no limit, or a ban, until a time or for good.
//
// A [Set] holds all of them in memory, where a decision finds them without a round trip. It
// keeps them in a [SharedCopy], such as a hash in Redis, or in memory, and in a journal file.
// Every change has a version, and the highest version of an override wins wherever two copies
// meet: so a daemon that knew more than a Redis that lost its data writes its copy back.
package overrides

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
)

// A Kind is what an override does.
type Kind uint8

// The kinds of overrides.
const (
	Limited   Kind = iota // another limit
	Unlimited             // no limit
	Banned                // nothing at all
)

// Kinds are all kinds, in the order of their numbers.
var Kinds = []Kind{Limited, Unlimited, Banned}

// String returns the name in metrics.
func (k Kind) String() string { return [...]string{"limit", unlimitedText, banText}[k] }

// The words that stand for a limit in the text of an override.
const (
	unlimitedText = "unlimited"
	banText       = "ban"
)

// An Action is what an override does, with its limit. Equal actions of one [Set] have the
// same address.
type Action struct {
	Kind  Kind
	Limit penstock.Limit // of Limited; without a name
	text  string
}

// String returns the action as text: a limit, "unlimited" or "ban".
func (a *Action) String() string { return a.text }

// ParseAction parses the text of an action. A limit has no name: its state belongs to the
// rule.
func ParseAction(text string) (*Action, error) {
	switch text {
	case "":
		return nil, errors.New(`want a limit such as 600/1m, "unlimited" or "ban"`)
	case unlimitedText:
		return &Action{Kind: Unlimited, text: text}, nil
	case banText:
		return &Action{Kind: Banned, text: text}, nil
	}
	if len(text) > maxLimitText {
		return nil, fmt.Errorf("limit of %d bytes: want at most %d", len(text), maxLimitText)
	}
	limit, err := penstock.ParseLimit(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf(`want a limit such as 600/1m, "unlimited" or "ban": %w`, err)
	case limit.Name != "":
		return nil, fmt.Errorf("limit %s: remove name=: the state belongs to the rule", text)
	}
	return &Action{Kind: Limited, Limit: limit.Normal(), text: limit.String()}, nil
}

// An Override changes what a rule does to one key, or to a range of keys.
type Override struct {
	Rule    string    // the rule's name
	Key     string    // in the form of [ParsePattern]
	Limit   string    // a limit, "unlimited" or "ban"
	Until   time.Time // zero: for good
	Reason  string
	Strikes int // how many bans in a row this is, if a penalty set it; 0 if an operator did
}

// ID identifies the override among all.
func (o *Override) ID() string { return o.Rule + "\x00" + o.Key }

// The bounds of what an operator may write.
const (
	maxRule      = 1 << 10
	maxKey       = 1 << 10
	maxReason    = 256
	maxLimitText = 256
)

// MaxOverrides is how many overrides may be in force.
const MaxOverrides = 100_000

// ErrFull means that there are [MaxOverrides] already.
var ErrFull = fmt.Errorf("there are %d overrides already: delete some", MaxOverrides)

// A FieldError says which field of an override is invalid.
type FieldError struct {
	Field string // as in JSON and CSV: rule, key, limit, until, reason
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns the problem.
func (e *FieldError) Unwrap() error { return e.Err }

func fieldError(field, format string, args ...any) error {
	return &FieldError{field, fmt.Errorf(format, args...)}
}

// Validate returns a [*FieldError] if the override is not valid.
func (o *Override) Validate() error {
	_, _, err := o.parse()
	return err
}

// parse returns the parts of the override that are text.
func (o *Override) parse() (*Action, Pattern, error) {
	if err := o.checkText(); err != nil {
		return nil, Pattern{}, err
	}
	action, err := ParseAction(o.Limit)
	if err != nil {
		return nil, Pattern{}, &FieldError{"limit", err}
	}
	pattern, err := ParsePattern(o.Key)
	if err != nil {
		return nil, Pattern{}, &FieldError{"key", err}
	}
	if action.Kind == Limited && !pattern.Exact() {
		return nil, Pattern{}, fieldError("key", "%q is a range: want ban or unlimited, since a limit needs one key", o.Key)
	}
	return action, pattern, nil
}

func (o *Override) checkText() error {
	for _, f := range []struct {
		name, text string
		most       int
	}{{"rule", o.Rule, maxRule}, {"key", o.Key, maxKey}, {"reason", o.Reason, maxReason}} {
		switch {
		case len(f.text) > f.most:
			return fieldError(f.name, "%d bytes: want at most %d", len(f.text), f.most)
		case !utf8.ValidString(f.text) || strings.ContainsRune(f.text, 0):
			return fieldError(f.name, "%.40q: want UTF-8 without NUL", f.text)
		case f.text == "" && f.name != "reason":
			return fieldError(f.name, "is empty")
		}
	}
	switch {
	case o.Strikes < 0 || o.Strikes > maxStrikes:
		return fieldError("strikes", "%d: want 0 to %d", o.Strikes, maxStrikes)
	case !o.Until.IsZero() && (o.Until.Year() < 1970 || o.Until.Year() > 2200):
		return fieldError("until", "%s: want a year from 1970 to 2200", o.Until.Format(time.RFC3339))
	}
	return nil
}

// maxStrikes bounds how often a penalty doubles: it has reached every up_to before.
const maxStrikes = 64
