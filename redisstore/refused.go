package redisstore

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A RefusedError means that a server answers, but refuses what the store asks of it: a proxy does not
// accept the script, a command or a permission is missing, or keys are in the wrong place. Unlike an outage it
// does not end by itself. It is [penstock.ErrUnavailable] too, so that a fallback can decide meanwhile.
type RefusedError struct {
	Err    error  // the server's words
	Advice string // what to do
}

func (e *RefusedError) Error() string { return fmt.Sprintf("refused: %v: %s", e.Err, e.Advice) }

// Unwrap returns the server's words.
func (e *RefusedError) Unwrap() error { return e.Err }

// advices are what to do after a refusal that contains a text. The last is for all others.
var advices = []struct{ text, advice string }{
	{"NOPERM", "give the user of Redis the commands and the prefix of keys that the store needs"},
	{"no permissions", "give the user of Redis the commands and the prefix of keys that the store needs"},
	{"can't run this command", "give the user of Redis the commands and the prefix of keys that the store needs"},
	{"NOAUTH", "put user and password in the URL"},
	{"WRONGPASS", "check user and password in the URL"},
	{"MOVED", "it is a node of a Cluster: want a URL that begins with redis-cluster://"},
	{"ASK", "it is a node of a Cluster: want a URL that begins with redis-cluster://"},
	{"CROSSSLOT", "its keys are in several slots: want a server that knows the hash tags of a Cluster"},
	{"same slot", "its keys are in several slots: want a server that knows the hash tags of a Cluster"},
	{"bad lua script", "the proxy reads scripts by rules of its own: turn that off (script_check_enable 0), or connect without the proxy"},
	{"unknown command", "the server or a proxy before it lacks a command: want Redis 6 or later, with EVAL"},
	{"non deterministic", "the server is too old: want Redis 6 or later"},
	{"", "the server answers, so this is no outage: change its settings, or use another one"},
}

// passing begin, in any case, the replies of a server or a proxy that cannot execute calls for a while. Redis is out
// of memory, or cannot save; the server behind a proxy does not answer.
var passing = []string{
	"oom ", "misconf ", "unkillable ", "err max number of clients", "max number of clients", "err upstream failure", "err no upstream host",
	"err connection ", "err host is down", "err operation timed out", "err no route to host", "err network is ", "err broken pipe",
	"err backend", "err handle response", "err handle request, slot is not ready",
}

// refusalOf returns the refusal in an error of a call or a connection, or nil if there is none: Redis did not reply, or the
// call may succeed later, or fails because of its key. Any other reply is a refusal. A Cluster redirects calls.
func refusalOf(err error, cluster bool) *RefusedError {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*RefusedError](err); ok {
		return known
	}
	code := rejectionCode(err)
	switch {
	case !isReply(err), isForeign(err), isPassing(reason(err)):
		return nil
	case code != "" && (cluster || code != "MOVED" && code != "ASK"):
		return nil
	}
	words := wordsOf(err)
	for _, a := range advices {
		if strings.Contains(words.Error(), a.text) {
			return &RefusedError{Err: words, Advice: a.advice}
		}
	}
	return nil
}

// quoted is where a server repeats what it was sent: a password, or a key of a caller.
var quoted = regexp.MustCompile(`,? with args beginning with:.*| the '.*' key`)

// wordsOf returns what a server has replied as a line for logs, without what it was sent.
func wordsOf(err error) error {
	text := err.Error()
	if words := printable(quoted.ReplaceAllString(text, "")); words != text {
		return errors.New(words)
	}
	return err
}

func isPassing(text string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(passing, func(begin string) bool { return strings.HasPrefix(text, begin) })
}

// crossesSlots reports whether a call was refused because of the slots of its keys. An unknown command is
// quoted, with keys that the caller may have chosen.
func crossesSlots(err error) bool {
	refused := refusalOf(err, true)
	if refused == nil {
		return false
	}
	text := reason(refused.Err)
	return strings.HasPrefix(text, "CROSSSLOT") || strings.Contains(text, "same slot") && !strings.Contains(text, "unknown command")
}

// A refusal is the last one of a store.
type refusal struct {
	err  error
	when time.Time
}

// refusalMemory is for how long a refusal counts as the state of the server. Where only some
// calls are refused, others succeed in between.
const refusalMemory = 10 * time.Second

// Refusals returns how many calls the server has refused, though it answers, and the last [RefusedError] of the
// last ten seconds, or nil.
func (s *Store) Refusals() (count uint64, last error) {
	if r := s.lastRefusal.Load(); r != nil && time.Since(r.when) < refusalMemory {
		last = r.err
	}
	return s.refusals.Load(), last
}

// refused returns the refusal in an error, which it counts, or the error itself.
func (s *Store) refused(err error) error {
	refused := refusalOf(err, s.client.Sharded())
	if refused == nil {
		return err
	}
	s.refusals.Add(1)
	s.lastRefusal.Store(&refusal{refused, time.Now()})
	return refused
}
