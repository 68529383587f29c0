package overrides

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Record is a version of an override, or of its deletion.
type Record struct {
	Override
	Version  int64 // microseconds since 1970, or more if versions were made faster than that
	Deleted  bool
	Replaces *int64 // the only version that it may replace, 0 for none; nil means any
}

// maxVersion bounds versions: Lua computes them in doubles.
const maxVersion = 1 << 52

// endedAt returns when the override ended or will, or the zero time.
func (r *Record) endedAt() time.Time {
	if r.Deleted {
		return time.UnixMicro(r.Version)
	}
	return r.Until
}

// retention is how long an override is remembered after its end: a daemon that was cut off
// for less than that learns of a deletion, and a penalty doubles if the next one comes
// within that time.
const retention = 24 * time.Hour

func (r *Record) expiredAt(now time.Time, keep time.Duration) bool {
	end := r.endedAt()
	return !end.IsZero() && end.Add(keep).Before(now)
}

// storedValue is the JSON of a record. The rule and the key are in its id.
type storedValue struct {
	Limit   string `json:"limit"`
	Until   int64  `json:"until,omitempty"` // Unix milliseconds
	Reason  string `json:"reason,omitempty"`
	Strikes int    `json:"strikes,omitempty"`
}

// Value returns the text of a record without its version: "" for a deletion.
func (r *Record) Value() string {
	if r.Deleted {
		return ""
	}
	v := storedValue{Limit: r.Limit, Reason: r.Reason, Strikes: r.Strikes}
	if !r.Until.IsZero() {
		v.Until = r.Until.UnixMilli()
	}
	text, _ := json.Marshal(v) // strings and numbers cannot fail
	return string(text)
}

// maxStored bounds the text of a record, with every character of it escaped.
const maxStored = 8 << 10

var errNotRecord = errors.New("not a record of an override")

// ParseRecord parses a record: its id, and its version and value with a space between them.
// Any program may have written it.
func ParseRecord(id, text string) (r Record, err error) {
	versionText, value, ok := strings.Cut(text, " ")
	rule, key, ok2 := strings.Cut(id, "\x00")
	if !ok || !ok2 || len(text) > maxStored {
		return r, errNotRecord
	}
	r.Version, err = strconv.ParseInt(versionText, 10, 64)
	if err != nil || r.Version <= 0 || r.Version > maxVersion {
		return r, fmt.Errorf("%w: version %.20q", errNotRecord, versionText)
	}
	r.Override = Override{Rule: rule, Key: key}
	if value == "" {
		r.Deleted, r.Limit = true, banText // the limit has no meaning, and must be valid
		return r, r.Validate()
	}
	var v storedValue
	if err := json.Unmarshal([]byte(value), &v); err != nil {
		return r, fmt.Errorf("%w: %w", errNotRecord, err)
	}
	r.Limit, r.Reason, r.Strikes = v.Limit, v.Reason, v.Strikes
	if v.Until != 0 {
		r.Until = time.UnixMilli(v.Until).UTC()
	}
	return r, r.Validate()
}
