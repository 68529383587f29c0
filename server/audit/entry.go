package audit

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
)

// The actions on keys. A package that adds actions names them here, as "what.verb".
const (
	KeyRefund = "key.refund"
	KeyReset  = "key.reset"
	KeySettle = "key.settle"

	OverrideSet    = "override.set"
	OverrideDelete = "override.delete"

	CandidateSet    = "candidate.set"
	CandidateDelete = "candidate.delete"
)

// Actions are all actions, for metrics that begin at 0.
var Actions = []string{KeyRefund, KeyReset, KeySettle, OverrideSet, OverrideDelete, CandidateSet, CandidateDelete}

// A Result is how an action ended.
type Result string

// The results. Started is on the line that is written before the action, and stays the
// last word on an action only if the daemon died, or the log failed, before it ended.
const (
	Started Result = "started"
	Done    Result = "done"
	Refused Result = "refused" // nothing was tried
	Failed  Result = "failed"  // it did not happen
	Unknown Result = "unknown" // the store gave no answer: it may or may not have happened
)

// Results are all results with which an action can end.
var Results = []Result{Done, Refused, Failed, Unknown}

// An Entry describes one action. The API that carries it out fills in the fields from
// API to Reason; the log fills in the others.
type Entry struct {
	ID   string    `json:"id"` // the same on both lines of an action
	Time time.Time `json:"time"`
	Node string    `json:"node,omitempty"`

	Action string `json:"action"`         // such as KeyReset
	API    string `json:"api"`            // grpc, http, resp or admin
	Verb   string `json:"verb,omitempty"` // as the API calls it: "DELETE /v1/keys", "DEL"
	Actor  Actor  `json:"actor"`
	Target Target `json:"target"`

	// Before and After are nil if they are not known.
	Before *State `json:"before,omitempty"`
	After  *State `json:"after,omitempty"`
	Units  int64  `json:"units,omitempty"` // that were refunded

	Reason string `json:"reason,omitempty"`
	Result Result `json:"result"`
	Detail string `json:"detail,omitempty"` // why it was refused or failed

	// NotRecorded counts the refusals since the last recorded one that were left out,
	// because unidentified callers caused more than the log records.
	NotRecorded int64 `json:"not_recorded,omitempty"`
}

// An Actor is the caller that acts.
type Actor struct {
	// Name is that of the token, or the subject of the client's certificate.
	Name string `json:"name,omitempty"`

	// Via is what let the caller act: ViaToken, ViaLocal, or "" if nothing did.
	Via string `json:"via,omitempty"`

	Address     string `json:"address,omitempty"`     // of the other end of the connection
	Certificate string `json:"certificate,omitempty"` // subject of the client's certificate
}

// What lets a caller act.
const (
	ViaToken = "token" //nolint:gosec // a word, not a token
	ViaLocal = "local" // a program on the daemon's machine, while there is no token
)

// A Target is what an action is about.
type Target struct {
	Domain string `json:"domain,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Limit  string `json:"limit,omitempty"`
	Key    string `json:"-"` // any bytes; "key" in JSON, or "key_base64" if it is not UTF-8
}

// State is what is recorded about a target before and after an action. Actions differ in
// which of the fields they know.
type State struct {
	Remaining  *int64   `json:"remaining,omitempty"`
	ResetAfter *float64 `json:"reset_after,omitempty"` // seconds until nothing is charged any more

	Limit   string    `json:"limit,omitempty"` // that applies to the target alone
	Expires time.Time `json:"expires,omitzero"`
}

// After returns the state that a decision found.
func After(d *penstock.Decision) *State {
	reset := d.ResetAfter.Seconds()
	return &State{Remaining: new(d.Remaining), ResetAfter: &reset}
}

// Before returns the state before a decision that returned units, without asking the
// store. Of a sliding window it is approximate: units of the previous window weigh less
// than those that were returned.
func Before(d *penstock.Decision) *State {
	return &State{Remaining: new(max(0, d.Remaining+min(d.Granted, 0)))}
}

// The longest texts that an entry keeps, in bytes. Longer ones are cut: whatever a remote
// caller chooses must not fill the log.
const (
	maxKey  = 4 << 10 // as the APIs accept them
	maxText = 512
)

// MaxReason is the length of the longest reason, in bytes.
const MaxReason = maxText

// bounded returns the entry with its texts cut, in memory of its own: callers pass texts
// that share a buffer.
func (e Entry) bounded() Entry {
	for _, text := range []*string{
		&e.Action, &e.API, &e.Verb, &e.Actor.Name, &e.Actor.Address, &e.Actor.Certificate,
		&e.Target.Domain, &e.Target.Rule, &e.Target.Limit, &e.Reason, &e.Detail,
	} {
		*text = cut(strings.ToValidUTF8(*text, "\uFFFD"), maxText)
	}
	e.Target.Key = cut(e.Target.Key, maxKey)
	return e
}

// cut returns the first bytes of a text, in memory of its own. It does not split runes.
func cut(text string, most int) string {
	if len(text) <= most {
		return strings.Clone(text)
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// MarshalJSON writes the key so that no byte of it is lost.
func (t Target) MarshalJSON() ([]byte, error) {
	type fields Target
	key := struct {
		fields
		Key       string `json:"key,omitempty"`
		KeyBase64 string `json:"key_base64,omitempty"`
	}{fields: fields(t), Key: t.Key}
	if !utf8.ValidString(t.Key) {
		key.Key, key.KeyBase64 = "", base64.StdEncoding.EncodeToString([]byte(t.Key))
	}
	return json.Marshal(key)
}

// line returns the entry as a line of JSON, in which every character that a terminal
// could act on is escaped: operators read the log with cat and tail.
func (e *Entry) line() []byte {
	text, _ := json.Marshal(e) // no error: all fields can be encoded
	return append(escape(text), '\n')
}

// escape escapes the characters in JSON text that encoding/json leaves as they are and
// that do not print: C1 controls, marks that change the direction of writing, and others.
func escape(text []byte) []byte {
	out := make([]byte, 0, len(text)+1)
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}
