package client

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
)

// A TakeRequest is the body of POST /v1/take: a request for a key under the limit that
// it carries, or for descriptors by the rules of a domain.
type TakeRequest struct {
	Key       string      `json:"key,omitempty"`
	KeyBase64 string      `json:"key_base64,omitempty"` // in place of Key, if that is not UTF-8
	Limit     string      `json:"limit,omitempty"`      // as text: "10/1m"
	AtMost    bool        `json:"at_most,omitempty"`
	Overdraw  bool        `json:"overdraw,omitempty"`
	MaxDelay  json.Number `json:"max_delay,omitempty"` // seconds
	KeepFree  int64       `json:"keep_free,omitempty"`
	NewID     bool        `json:"new_id,omitempty"`
	ID        string      `json:"id,omitempty"`
	Hold      json.Number `json:"hold,omitempty"` // seconds

	Domain      string       `json:"domain,omitempty"`
	Descriptors []Descriptor `json:"descriptors,omitempty"`

	Cost int64 `json:"cost"` // 0 peeks, a negative cost refunds
}

// A Descriptor is matched against the rules of the domain.
type Descriptor struct {
	Entries []Entry `json:"entries"`
	Cost    *int64  `json:"cost,omitempty"` // in place of that of the request
}

// An Entry is a key and a value of a descriptor.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// takeList is the body of POST /v1/take for several requests.
type takeList struct {
	Mode     string            `json:"mode"`
	Requests []json.RawMessage `json:"requests"` // each a TakeRequest
}

func newTakeRequest(r penstock.Request) (TakeRequest, error) {
	if !utf8.ValidString(r.ID) {
		return TakeRequest{}, &penstock.FieldError{Field: "ID", Problem: "must be UTF-8 to be sent as JSON", Kind: penstock.ErrBadCost}
	}
	t := TakeRequest{
		Limit: r.Limit.String(), Cost: r.Cost, AtMost: r.AtMost, Overdraw: r.Overdraw, KeepFree: r.KeepFree,
		MaxDelay: secondsOf(r.MaxDelay), ID: r.ID, NewID: r.NewID, Hold: secondsOf(r.Hold),
	}
	if key := shorten(r.Key); len(key) <= maxKeyText && utf8.ValidString(key) {
		t.Key = key
	} else {
		t.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(key))
	}
	return t, nil
}

const (
	// maxKey is the longest key that the server accepts.
	maxKey = 4 << 10

	// maxKeyText is the longest key that is sent as text. In JSON it may be six times as
	// long, and keys of one TakeAll must fit into one body; base64 adds a third to any key.
	maxKeyText = 1 << 10
)

// shorten returns a key, or its hash if it is too long, as the server does with what proxies
// send: middleware takes keys from headers, and lets requests pass that cannot be decided, so a
// client must not escape its limit with a long key.
func shorten(key string) string {
	if len(key) <= maxKey {
		return key
	}
	return fmt.Sprintf("|sha256:%x", sha256.Sum256([]byte(key)))
}

func secondsOf(d time.Duration) json.Number {
	if d == 0 {
		return "" // which is left out
	}
	return json.Number(fmt.Sprintf("%d.%09d", d/time.Second, d%time.Second))
}

// A TakeResponse is the response of POST /v1/take.
type TakeResponse struct {
	penstock.Decision      // only Allowed has a meaning if Limited is false
	Limited           bool // whether any limit applied

	Rule string // the rule that decided, if any
	Mode string // "shadow" or "quota" if the rule has that mode

	Descriptors []TakeResponse // by descriptor, in their order
	JSON        []byte         // the body of the response
}

// responseBody is the JSON of a response.
type responseBody struct {
	Allowed    *bool          `json:"allowed"` // nil if it is no decision
	Rule       string         `json:"rule"`
	Mode       string         `json:"mode"`
	Granted    int64          `json:"granted"`
	Limit      *int64         `json:"limit"`
	Remaining  int64          `json:"remaining"`
	RetryAfter seconds        `json:"retry_after"`
	ResetAfter seconds        `json:"reset_after"`
	Delay      seconds        `json:"delay"`
	Source     source         `json:"source"`
	Decisions  []responseBody `json:"decisions"`
}

func (b *responseBody) decision() penstock.Decision {
	d := penstock.Decision{
		Allowed: b.Allowed != nil && *b.Allowed, Granted: b.Granted, Remaining: b.Remaining,
		RetryAfter: time.Duration(b.RetryAfter), ResetAfter: time.Duration(b.ResetAfter),
		Delay: time.Duration(b.Delay), Source: penstock.Source(b.Source),
	}
	if b.Limit != nil {
		d.Limit = *b.Limit
	}
	return d
}

func (b *responseBody) response() TakeResponse {
	r := TakeResponse{Decision: b.decision(), Limited: b.Limit != nil, Rule: b.Rule, Mode: b.Mode}
	for i := range b.Decisions {
		r.Descriptors = append(r.Descriptors, b.Decisions[i].response())
	}
	return r
}

// seconds is a duration as a JSON number of seconds; null is penstock.Never.
type seconds time.Duration

// UnmarshalJSON is exact to the nanosecond, unlike a float64.
func (s *seconds) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*s = seconds(penstock.Never)
		return nil
	}
	d, err := time.ParseDuration(string(text) + "s")
	*s = seconds(d)
	return err
}

// source is a penstock.Source by its name.
type source penstock.Source

// UnmarshalText parses the name of a source.
func (s *source) UnmarshalText(text []byte) error {
	for known := penstock.SourceStore; known <= penstock.SourceOverride; known++ {
		if known.String() == string(text) {
			*s = source(known)
			return nil
		}
	}
	return fmt.Errorf("unknown source %q", text)
}
