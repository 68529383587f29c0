package client

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
)

// A TakeRequest is what a server can be asked: about a key, under the limit that comes
// with it, or about descriptors, by the rules of a domain.
type TakeRequest struct {
	Key       string      `json:"key,omitempty"`
	KeyBase64 string      `json:"key_base64,omitempty"` // where the key is not UTF-8
	Limit     string      `json:"limit,omitempty"`      // as text: "10/1m"
	AtMost    bool        `json:"at_most,omitempty"`
	MaxDelay  json.Number `json:"max_delay,omitempty"` // seconds
	ID        string      `json:"id,omitempty"`

	Domain      string       `json:"domain,omitempty"`
	Descriptors []Descriptor `json:"descriptors,omitempty"`

	Cost int64 `json:"cost"` // 0 looks, and less gives back
}

// A Descriptor is what is to be counted by the rules.
type Descriptor struct {
	Entries []Entry `json:"entries"`
}

// An Entry is one of a descriptor's.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type list struct {
	Mode     string        `json:"mode"`
	Requests []TakeRequest `json:"requests"`
}

func questionOf(r penstock.Request) (TakeRequest, error) {
	if !utf8.ValidString(r.ID) {
		return TakeRequest{}, &penstock.FieldError{Field: "ID", Problem: "is not UTF-8, and cannot be sent", Kind: penstock.ErrBadCost}
	}
	out := TakeRequest{Limit: r.Limit.String(), Cost: r.Cost, AtMost: r.AtMost, ID: r.ID}
	if utf8.ValidString(r.Key) {
		out.Key = r.Key
	} else {
		out.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(r.Key))
	}
	if r.MaxDelay != 0 {
		out.MaxDelay = json.Number(fmt.Sprintf("%d.%09d", r.MaxDelay/time.Second, r.MaxDelay%time.Second))
	}
	return out, nil
}

// An TakeResponse is what a server decided.
type TakeResponse struct {
	penstock.Decision // of which only Allowed means something where no limit applied
	Limited           bool

	Rule string // that decided, where it was one
	Mode string // of a rule that does not deny by itself: shadow or quota

	Parts []TakeResponse // to the descriptors, in their order
	JSON  []byte         // as it was sent
}

// answer is what comes back.
type answer struct {
	Allowed    bool     `json:"allowed"`
	Rule       string   `json:"rule"`
	Mode       string   `json:"mode"`
	Granted    int64    `json:"granted"`
	Limit      *int64   `json:"limit"`
	Remaining  int64    `json:"remaining"`
	RetryAfter seconds  `json:"retry_after"`
	ResetAfter seconds  `json:"reset_after"`
	Delay      seconds  `json:"delay"`
	Source     source   `json:"source"`
	Decisions  []answer `json:"decisions"`
}

func (a *answer) decision() penstock.Decision {
	d := penstock.Decision{
		Allowed: a.Allowed, Granted: a.Granted, Remaining: a.Remaining,
		RetryAfter: time.Duration(a.RetryAfter), ResetAfter: time.Duration(a.ResetAfter),
		Delay: time.Duration(a.Delay), Source: penstock.Source(a.Source),
	}
	if a.Limit != nil {
		d.Limit = *a.Limit
	}
	return d
}

func (a *answer) told() TakeResponse {
	told := TakeResponse{Decision: a.decision(), Limited: a.Limit != nil, Rule: a.Rule, Mode: a.Mode}
	for i := range a.Decisions {
		told.Parts = append(told.Parts, a.Decisions[i].told())
	}
	return told
}

// seconds is a duration, sent as a number of seconds; null is never.
type seconds time.Duration

// UnmarshalJSON reads the number to the nanosecond, which a float64 would not.
func (s *seconds) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*s = seconds(penstock.Never)
		return nil
	}
	d, err := time.ParseDuration(string(text) + "s")
	*s = seconds(d)
	return err
}

// source is a penstock.Source, sent by its name.
type source penstock.Source

// UnmarshalText reads the name of a source.
func (s *source) UnmarshalText(text []byte) error {
	for known := penstock.SourceStore; known <= penstock.SourceFallback; known++ {
		if known.String() == string(text) {
			*s = source(known)
			return nil
		}
	}
	return fmt.Errorf("%q is no source of decisions", text)
}

// An Error is what a server answers instead of a decision, where that is not
// about a field of the request.
type Error struct {
	Status int    `json:"status"`
	Type   string `json:"type"` // see the constants of package httpapi
	Title  string `json:"title"`
	Detail string `json:"detail"`

	// Pointer says what in the request is wrong, as "#/limit". Optional.
	Pointer string `json:"pointer"`
}

func (e *Error) Error() string {
	if e.Title == "" {
		return fmt.Sprintf("client: the server answers %d %s", e.Status, http.StatusText(e.Status))
	}
	return fmt.Sprintf("client: %s: %s", e.Title, e.Detail)
}

// Unwrap returns [penstock.ErrUnavailable] if the server could not decide.
func (e *Error) Unwrap() error {
	if e.Status >= http.StatusInternalServerError {
		return penstock.ErrUnavailable
	}
	return nil
}

// errorOf returns what an answer that is not a decision says.
func errorOf(response *http.Response, body []byte) error {
	e := &Error{}
	if json.Unmarshal(body, e) != nil {
		e = &Error{}
	}
	e.Status = response.StatusCode
	_, kind, _ := strings.Cut(e.Type, "#")
	about, ok := fields[kind]
	if !ok {
		return e
	}
	if name, ok := names[e.Pointer[strings.LastIndexByte(e.Pointer, '/')+1:]]; ok {
		about.Field = name
	}
	about.Problem = e.Detail
	return &about
}

// fields says what the types of problem are called in the library, and names
// what the members are.
var (
	fields = map[string]penstock.FieldError{
		"ProblemBadLimit": {Field: "Limit", Kind: penstock.ErrBadLimit},
		"ProblemBadKey":   {Field: "Key", Kind: penstock.ErrBadKey},
		"ProblemBadCost":  {Field: "Cost", Kind: penstock.ErrBadCost},
	}
	names = map[string]string{
		"key": "Key", "key_base64": "Key", "cost": "Cost", "at_most": "AtMost", "max_delay": "MaxDelay", "id": "ID",
	}
)
