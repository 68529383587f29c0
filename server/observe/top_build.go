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
	asked, denied := o.topKeys(q.Rule)
	t.Enabled = o.options.TopKeys != nil
	if q.Scope == ScopeAll {
		peers := o.others(ctx)
		t.Daemons = allDaemons(Daemon{Name: t.Daemon, Version: o.options.Version, Started: o.started.UTC(), Updated: t.Time}, peers)
		asked, denied = mergeTop(asked, peers, ByAsked, q.Rule), mergeTop(denied, peers, ByDenied, q.Rule)
		topkeys.Agree(&asked, &denied)
		t.Enabled = t.Enabled || len(asked.Entries) > 0
	}
	t.set(asked, denied, q.N)
	return t
}

func (o *Observer) topKeys(rule *string) (asked, denied topkeys.Summary) {
	if o.options.TopKeys == nil {
		none := topkeys.Summary{Since: o.options.Now(), Sampling: 1}
		return none, none
	}
	return o.options.TopKeys.Keys(rule)
}

// set sets the keys, and what is known of the others.
func (t *Top) set(asked, denied topkeys.Summary, n int) {
	first := asked
	if t.By == ByDenied {
		first = denied
	}
	first = first.Top(n)
	t.Since, t.Sampling, t.Total, t.Floor = first.Since.UTC(), first.Sampling, first.Total, first.Floor
	t.Totals = TopTotals{asked.Total, denied.Total}
	ofAsked, ofDenied := asked.Finder(), denied.Finder()
	for i := range first.Entries {
		e := &first.Entries[i]
		k := newTopKey(e, first.Total)
		k.Asked, k.Denied = newKeyCount(ofAsked(e)), newKeyCount(ofDenied(e))
		t.Keys = append(t.Keys, k)
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
		seen := SeenKey{Rule: s.Rule, Limit: s.Limit, Asked: seenCount(s.Asked), Denied: seenCount(s.Denied), Last: []SeenDecision{}}
		for _, d := range s.Last {
			seen.Last = append(seen.Last, SeenDecision{Time: d.Time.UTC(), Outcome: d.Outcome.String(), Cost: d.Cost, Remaining: d.Remaining})
		}
		all = append(all, seen)
	}
	return all
}

func seenCount(e *topkeys.Entry) *KeyCount {
	if e == nil {
		return nil
	}
	count := newKeyCount(*e)
	return &count
}

func newKeyCount(e topkeys.Entry) KeyCount {
	return KeyCount{Count: e.Count, Guaranteed: e.Guaranteed()}
}
