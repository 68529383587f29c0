package observe

import "time"

// A Top is the response of GET /v1/top: the keys with the most decisions, or denials.
type Top struct {
	Time   time.Time `json:"time"`
	Scope  string    `json:"scope"`
	Daemon string    `json:"daemon"`
	By     string    `json:"by"` // ByAsked or ByDenied

	// Enabled is false if --top-keys is 0: then there are no keys.
	Enabled bool `json:"enabled"`

	// Since is when counting began, one to two minutes ago.
	Since time.Time `json:"since"`

	// Sampling is the largest step since then: 1 if every decision was counted, 8 if one
	// in eight was, with a weight of eight.
	Sampling int `json:"sampling"`

	// Total is how many decisions, or denials, were counted under all rules. A key that
	// is missing has at most Floor of them.
	Total uint64   `json:"total"`
	Floor uint64   `json:"floor"`
	Keys  []TopKey `json:"keys"` // the largest Guaranteed first

	// Totals are those of both orders.
	Totals TopTotals `json:"totals"`

	Daemons []Daemon `json:"daemons,omitempty"`
}

// TopTotals are how many decisions and denials were counted under all rules.
type TopTotals struct {
	Asked  uint64 `json:"asked"`
	Denied uint64 `json:"denied"`
}

// What /v1/top ranks keys by.
const (
	ByAsked  = "asked"
	ByDenied = "denied"
)

// A TopKey is a key and how many decisions, or denials, it had: at least Guaranteed and at
// most Count, of what was sampled.
type TopKey struct {
	Rule  string `json:"rule"`            // "" for a limit that requests brought
	Limit string `json:"limit,omitempty"` // of such a limit, unless there are too many of them

	// Key is the text of the key. If it is not UTF-8, KeyBase64 is the key. If it is
	// longer than what is kept of it, both are its beginning, and Truncated is set.
	Key       string `json:"key"`
	KeyBase64 string `json:"key_base64,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`

	Count      uint64 `json:"count"`
	Guaranteed uint64 `json:"guaranteed"`

	// Shadowed is how many of the denials were not enforced, while the key was in the
	// list.
	Shadowed uint64  `json:"shadowed"`
	Share    float64 `json:"share"` // of Guaranteed in the total

	// Asked and Denied are the bounds of both numbers, of one moment: a key is denied at most as often as it asked.
	Asked  KeyCount `json:"asked"`
	Denied KeyCount `json:"denied"`
}

// A SeenKey is what a daemon knows of a key in the lists of top keys.
type SeenKey struct {
	Rule   string         `json:"rule"`
	Limit  string         `json:"limit,omitempty"`
	Asked  *KeyCount      `json:"asked"`
	Denied *KeyCount      `json:"denied"` // null if it is not in that list
	Last   []SeenDecision `json:"last"`   // the newest first, at most 16
}

// A KeyCount is how many decisions, or denials, a key had in the last one to two minutes.
type KeyCount struct {
	Count      uint64 `json:"count"`
	Guaranteed uint64 `json:"guaranteed"`
}

// A SeenDecision is a decision of this daemon about a key.
type SeenDecision struct {
	Time      time.Time `json:"time"`
	Outcome   string    `json:"outcome"` // allowed, denied or shadowed
	Cost      int64     `json:"cost"`
	Remaining int64     `json:"remaining"`
}
