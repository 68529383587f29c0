package observe

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/internal/history"
)

// A peerSummary is what a daemon publishes about itself, as compressed JSON. It is
// bounded, and read with distrust: a program that can write to Redis can write anything.
type peerSummary struct {
	Format  int
	Windows map[Window]peerWindow
	Top     map[string]peerTop // by ByAsked and ByDenied
}

// A peerWindow is what a daemon did within a window.
type peerWindow struct {
	Live
	Latency map[string][]uint64 // buckets by listener
}

// A peerTop is a list of top keys. The entries are those of the summary.
type peerTop struct {
	topkeys.Summary
	Entries []peerKey
}

type peerKey struct {
	topkeys.Entry
	Key []byte // any bytes, so not a string
}

const (
	summaryFormat = 1

	// What a summary contains at most.
	maxPeerRules     = 50 // by decisions in each window
	maxPeerKeys      = 200
	maxPeerText      = 1 << 10
	maxPeerKeyBytes  = 256
	maxPeerReasons   = 10
	maxPeerListeners = 8
	maxPeerNumber    = 1 << 53
	maxSummaryJSON   = 2 << 20 // decompressed
)

// A summarySize is how much a summary may contain of what has no bound by itself.
type summarySize struct{ rules, keys int }

// summarySizes are tried in this order. Callers choose the keys, and random ones cannot be compressed:
// a daemon must not be missing for others because of them.
var summarySizes = []summarySize{
	{maxPeerRules, maxPeerKeys}, {maxPeerRules, maxPeerKeys / 4}, {maxPeerRules, 0}, {maxPeerRules / 4, 0}, {0, 0},
}

// encodeSummary returns the summary of this daemon, with as much as others accept.
func (o *Observer) encodeSummary() (summary []byte, err error) {
	for _, size := range summarySizes {
		summary, err = encode(o.newSummary(size))
		if err != nil || len(summary) <= MaxSummaryBytes {
			return summary, err
		}
	}
	return nil, fmt.Errorf("%d bytes, more than %d", len(summary), MaxSummaryBytes)
}

func encode(s *peerSummary) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	err := errors.Join(json.NewEncoder(w).Encode(s), w.Close())
	return out.Bytes(), err
}

func (o *Observer) newSummary(size summarySize) *peerSummary {
	s := &peerSummary{Format: summaryFormat, Windows: map[Window]peerWindow{}, Top: map[string]peerTop{}}
	for _, w := range Windows {
		s.Windows[w] = newPeerWindow(o.summary(w), size.rules)
	}
	if o.options.TopKeys != nil {
		asked, denied := o.options.TopKeys.Keys(nil)
		s.Top[ByAsked], s.Top[ByDenied] = newPeerTop(asked, size.keys), newPeerTop(denied, size.keys)
	}
	return s
}

// newPeerWindow leaves out what others do not show, and cuts what they would not accept.
func newPeerWindow(l *Live, rules int) peerWindow {
	latency := map[string][]uint64{}
	for _, one := range l.Listeners {
		if one.buckets != nil {
			latency[one.Name] = one.buckets
		}
	}
	l.Version = cutText(l.Version)
	l.Store.Shards, l.Store.Memory, l.Store.Home = nil, nil, nil
	reasons := l.Store.Reasons
	l.Store.Reasons = nil
	for _, reason := range reasons[:min(len(reasons), maxPeerReasons)] {
		l.Store.Reasons = append(l.Store.Reasons, cutText(reason))
	}
	l.selectRules(LiveQuery{Sort: "decisions", Rules: rules})
	l.Rules = slices.DeleteFunc(l.Rules, func(r RuleRow) bool { return len(r.Name) > maxPeerText || len(r.Limit) > maxPeerText })
	return peerWindow{*l, latency}
}

// cutText cuts texts that a peer would not accept.
func cutText(text string) string { return text[:min(len(text), maxPeerText)] }

func newPeerTop(s topkeys.Summary, most int) peerTop {
	s.Entries = slices.DeleteFunc(s.Entries, func(e topkeys.Entry) bool {
		if len(e.Rule) <= maxPeerText && len(e.Limit) <= maxPeerText {
			return false
		}
		s.Floor = max(s.Floor, e.Count)
		return true
	})
	s = s.Top(most)
	t := peerTop{Summary: s}
	t.Since, t.Summary.Entries = s.Since.UTC(), nil
	for _, e := range s.Entries {
		t.Entries = append(t.Entries, peerKey{e, []byte(e.Key)})
	}
	return t
}

func (t *peerTop) summary() topkeys.Summary {
	s := t.Summary
	for _, k := range t.Entries {
		k.Entry.Key = string(k.Key)
		s.Entries = append(s.Entries, k.Entry)
	}
	return s
}

var errBadSummary = errors.New("observe: bad summary")

// decodeSummary reads the summary of another daemon.
func decodeSummary(compressed []byte) (*peerSummary, error) {
	if len(compressed) > MaxSummaryBytes {
		return nil, fmt.Errorf("%w: more than %d bytes", errBadSummary, MaxSummaryBytes)
	}
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadSummary, err)
	}
	s := &peerSummary{}
	d := json.NewDecoder(io.LimitReader(r, maxSummaryJSON))
	if err := d.Decode(s); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadSummary, err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadSummary, err)
	}
	return s, nil
}

// check returns an error unless the summary is one that encodeSummary could have made, as
// far as its size, its shape and its numbers are concerned.
func (s *peerSummary) check() error {
	ok := s.Format == summaryFormat
	for _, w := range Windows {
		window := s.Windows[w]
		ok = ok && window.fits(resolutionOf[w])
	}
	for _, by := range []string{ByAsked, ByDenied} {
		top := s.Top[by]
		ok = ok && top.fits()
	}
	if !ok {
		return errors.New("other parts than a summary has")
	}
	return checkBounds(reflect.ValueOf(s))
}

func (w *peerWindow) fits(r history.Resolution) bool {
	ok := w.Series.Step == int(r.Step()) && w.Series.From%r.Step() == 0 && len(w.Rules) <= maxPeerRules &&
		len(w.Listeners) <= maxPeerListeners && len(w.Latency) <= maxPeerListeners && len(w.Store.Reasons) <= maxPeerReasons
	for _, column := range w.Series.columns() {
		ok = ok && len(*column) == r.Slots()
	}
	for i := range w.Rules {
		row := &w.Rules[i]
		ok = ok && row.DeniedShare <= 1 && row.ShadowShare <= 1 && len(row.Decisions) <= r.Slots() && len(row.DeniedOrShadowed) <= r.Slots()
	}
	return ok
}

func (t *peerTop) fits() bool {
	ok := len(t.Entries) <= maxPeerKeys
	for i := range t.Entries {
		k := &t.Entries[i]
		ok = ok && len(k.Key) <= maxPeerKeyBytes && k.Length >= len(k.Key) && k.Error <= k.Count
	}
	return ok
}

// checkBounds returns an error if a text within a value is too long, or a number below 0 or so large
// that sums could overflow.
func checkBounds(v reflect.Value) (err error) {
	ok := true
	switch kind := v.Kind(); {
	case v.Type() == reflect.TypeFor[time.Time]():
	case kind == reflect.String:
		ok = v.Len() <= maxPeerText
	case v.CanUint():
		ok = v.Uint() <= maxPeerNumber
	case v.CanInt():
		ok = v.Int() >= 0 && v.Int() <= maxPeerNumber
	case v.CanFloat():
		ok = v.Float() >= 0 && v.Float() <= maxPeerNumber
	case kind == reflect.Pointer && !v.IsNil():
		err = checkBounds(v.Elem())
	case kind == reflect.Struct:
		for i := range v.NumField() {
			err = cmp.Or(err, checkBounds(v.Field(i)))
		}
	case kind == reflect.Slice:
		for i := range v.Len() {
			err = cmp.Or(err, checkBounds(v.Index(i)))
		}
	case kind == reflect.Map:
		for key, value := range v.Seq2() {
			err = cmp.Or(err, checkBounds(key), checkBounds(value))
		}
	}
	if !ok {
		return fmt.Errorf("%v is out of bounds", v.Type())
	}
	return err
}
