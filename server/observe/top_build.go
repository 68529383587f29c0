package observe

import (
	"context"
	"encoding/base64"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/topkeys"
)

// A TopQuery selects keys.
type TopQuery struct {
	Scope string
	By    string
	Rule  *string // nil for all
	N     int     // at most so many keys
}

// Top returns the keys with the most decisions or denials.
func (o *Observer) Top(ctx context.Context, q TopQuery) *Top {
	t := &Top{Time: o.options.Now().UTC(), Scope: q.Scope, Daemon: o.options.Name, By: q.By, Sampling: 1, Keys: []TopKey{}}
	keys := topkeys.Summary{Since: t.Time, Sampling: 1}
	if t.Enabled = o.options.TopKeys != nil; t.Enabled {
		keys = o.topKeys(q.By, q.Rule)
	}
	if q.Scope == ScopeAll {
		peers := o.others(ctx)
		t.Daemons = allDaemons(Daemon{Name: t.Daemon, Version: o.options.Version, Started: o.started.UTC(), Updated: t.Time}, peers)
		keys = mergeTop(keys, peers, q)
		t.Enabled = t.Enabled || len(keys.Entries) > 0
	}
	t.set(keys, q.N)
	return t
}

func (o *Observer) topKeys(by string, rule *string) topkeys.Summary {
	if by == ByDenied {
		return o.options.TopKeys.Denied(rule)
	}
	return o.options.TopKeys.Asked(rule)
}

// set sets the keys and what is known of the others.
func (t *Top) set(s topkeys.Summary, n int) {
	s = s.Top(n)
	t.Since, t.Sampling, t.Total, t.Floor = s.Since.UTC(), s.Sampling, s.Total, s.Floor
	for i := range s.Entries {
		t.Keys = append(t.Keys, newTopKey(&s.Entries[i], s.Total))
	}
}

func newTopKey(e *topkeys.Entry, total uint64) TopKey {
	k := TopKey{
		Rule: e.Rule, Limit: e.Limit, Key: e.Key, Truncated: e.Length > len(e.Key),
		Count: e.Count, Guaranteed: e.Guaranteed(), Shadowed: e.Shadowed,
	}
	if k.Truncated {
		k.Key = wholeRunes(k.Key)
	}
	if !utf8.ValidString(k.Key) {
		k.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(e.Key))
	}
	if total > 0 {
		k.Share = float64(k.Guaranteed) / float64(total)
	}
	return k
}

// wholeRunes returns a text without a rune at its end that was cut in the middle.
func wholeRunes(text string) string {
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if last := text[len(text)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRuneInString(last) {
				return text[:len(text)-i]
			}
			break
		}
	}
	return text
}

// Seen returns what the daemon knows of a key, under each rule and limit.
func (o *Observer) Seen(key string) []SeenKey {
	all := []SeenKey{}
	for _, s := range o.options.TopKeys.Seen(key) {
		seen := SeenKey{Rule: s.Rule, Limit: s.Limit, Asked: newKeyCount(s.Asked), Denied: newKeyCount(s.Denied), Last: []SeenDecision{}}
		for _, d := range s.Last {
			seen.Last = append(seen.Last, SeenDecision{Time: d.Time.UTC(), Outcome: d.Outcome.String(), Cost: d.Cost, Remaining: d.Remaining})
		}
		all = append(all, seen)
	}
	return all
}

func newKeyCount(e *topkeys.Entry) *KeyCount {
	if e == nil {
		return nil
	}
	return &KeyCount{Count: e.Count, Guaranteed: e.Guaranteed()}
}
