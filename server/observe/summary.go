package observe

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/internal/history"
)

// A peerSummary is what a daemon tells others about itself, as compressed JSON. It is
// bounded, and read with distrust: a program that can write to Redis can write anything.
type peerSummary struct {
	Format    int
	Version   string
	Started   time.Time
	Totals    Counts
	Unmatched uint64
	Rates     Rates
	Listeners []peerListener
	Store     peerStore
	Process   Process
	Windows   map[Window]peerWindow
	Top       map[string]peerTop // by ByAsked and ByDenied
}

type peerListener struct {
	Name        string
	Connections int
	Refused     uint64
}

type peerStore struct {
	Degraded    bool
	Reasons     []string
	Errors      uint64
	StateLosses map[string]uint64
}

// A peerWindow is the part of a summary that is about one window.
type peerWindow struct {
	Series  Series
	Rules   []RuleRow
	Latency map[string][]uint64 // buckets by listener
}

type peerTop struct {
	Since    time.Time
	Sampling int
	Total    uint64
	Floor    uint64
	Keys     []peerKey
}

type peerKey struct {
	Rule, Limit            string
	Key                    []byte // any bytes, so not a string
	Length                 int
	Rest                   uint32
	Count, Error, Shadowed uint64
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
	s := &peerSummary{
		Format: summaryFormat, Version: cutText(o.options.Version), Started: o.started.UTC(),
		Windows: map[Window]peerWindow{}, Top: map[string]peerTop{},
	}
	for _, w := range Windows {
		l := o.summary(w)
		s.Totals, s.Unmatched, s.Rates, s.Process = l.Totals, l.Unmatched, l.Rates, l.Process
		s.Store = newPeerStore(&l.Store)
		s.Listeners = nil
		latency := map[string][]uint64{}
		for _, one := range l.Listeners {
			s.Listeners = append(s.Listeners, peerListener{one.Name, one.Connections, one.Refused})
			if one.buckets != nil {
				latency[one.Name] = one.buckets
			}
		}
		l.selectRules(LiveQuery{Sort: "decisions", Rules: size.rules})
		s.Windows[w] = peerWindow{Series: l.Series, Rules: cutRows(l.Rules), Latency: latency}
	}
	if o.options.TopKeys != nil {
		s.Top[ByAsked], s.Top[ByDenied] = newPeerTop(o.options.TopKeys.Asked(nil), size.keys), newPeerTop(o.options.TopKeys.Denied(nil), size.keys)
	}
	return s
}

// cutText cuts texts that a peer would not accept.
func cutText(text string) string { return text[:min(len(text), maxPeerText)] }

func cutRows(rows []RuleRow) []RuleRow {
	return slices.DeleteFunc(rows, func(r RuleRow) bool { return len(r.Name) > maxPeerText || len(r.Limit) > maxPeerText })
}

func newPeerStore(s *Store) peerStore {
	p := peerStore{Degraded: s.Degraded, Errors: s.Errors, StateLosses: map[string]uint64{}}
	for _, reason := range s.Reasons[:min(len(s.Reasons), maxPeerReasons)] {
		p.Reasons = append(p.Reasons, cutText(reason))
	}
	for _, loss := range s.StateLosses {
		p.StateLosses[loss.Reason] = loss.Count
	}
	return p
}

func newPeerTop(s topkeys.Summary, most int) peerTop {
	s.Entries = slices.DeleteFunc(s.Entries, func(e topkeys.Entry) bool {
		if len(e.Rule) <= maxPeerText && len(e.Limit) <= maxPeerText {
			return false
		}
		s.Floor = max(s.Floor, e.Count)
		return true
	})
	s = s.Top(most)
	t := peerTop{Since: s.Since.UTC(), Sampling: s.Sampling, Total: s.Total, Floor: s.Floor}
	for _, e := range s.Entries {
		t.Keys = append(t.Keys, peerKey{e.Rule, e.Limit, []byte(e.Key), e.Length, e.Rest, e.Count, e.Error, e.Shadowed})
	}
	return t
}

func (t peerTop) summary() topkeys.Summary {
	s := topkeys.Summary{Since: t.Since, Sampling: t.Sampling, Total: t.Total, Floor: t.Floor}
	for _, k := range t.Keys {
		s.Entries = append(s.Entries, topkeys.Entry{
			Rule: k.Rule, Limit: k.Limit, Key: string(k.Key), Length: k.Length, Rest: k.Rest,
			Count: k.Count, Error: k.Error, Shadowed: k.Shadowed,
		})
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
	c := summaryCheck{}
	c.require(s.Format == summaryFormat, "format")
	c.texts(s.Version)
	c.counts(s.Totals)
	c.numbers(s.Unmatched, s.Store.Errors, s.Process.HeapBytes, s.Process.TotalBytes)
	c.rates(s.Rates)
	c.require(s.Process.Goroutines >= 0 && s.Process.Processors >= 0, "process")
	c.listeners(s)
	for _, w := range Windows {
		window := s.Windows[w]
		c.window(w, &window)
	}
	for _, by := range []string{ByAsked, ByDenied} {
		top := s.Top[by]
		c.top(&top)
	}
	return c.err
}

// A summaryCheck keeps the first error.
type summaryCheck struct{ err error }

func (c *summaryCheck) require(ok bool, what string) {
	if !ok && c.err == nil {
		c.err = fmt.Errorf("%s is out of range", what)
	}
}

func (c *summaryCheck) texts(all ...string) {
	for _, text := range all {
		c.require(len(text) <= maxPeerText, "text")
	}
}

func (c *summaryCheck) numbers(all ...uint64) {
	for _, n := range all {
		c.require(n <= maxPeerNumber, "number")
	}
}

func (c *summaryCheck) counts(n Counts) { c.numbers(n.Allowed, n.Denied, n.Shadowed, n.Errors) }

func (c *summaryCheck) rates(r Rates) {
	for _, rate := range []float64{r.Decisions, r.Allowed, r.Denied, r.Shadowed, r.Errors} {
		c.require(rate >= 0 && rate <= maxPeerNumber, "rate")
	}
}

func (c *summaryCheck) listeners(s *peerSummary) {
	c.require(len(s.Listeners) <= maxPeerListeners && len(s.Store.Reasons) <= maxPeerReasons, "list")
	for _, l := range s.Listeners {
		c.texts(l.Name)
		c.numbers(l.Refused)
		c.require(l.Connections >= 0, "connections")
	}
	c.texts(s.Store.Reasons...)
	for _, n := range s.Store.StateLosses {
		c.numbers(n)
	}
}

func (c *summaryCheck) window(name Window, w *peerWindow) {
	r := resolutionOf[name]
	c.require(w.Series.Step == int(r.Step()) && w.Series.From%r.Step() == 0 && w.Series.From >= 0 && w.Series.From < maxPeerNumber, "series")
	for _, column := range w.Series.columns() {
		c.require(len(*column) == r.Slots(), "series")
		c.numbers(*column...)
	}
	c.require(len(w.Rules) <= maxPeerRules && len(w.Latency) <= maxPeerListeners, "list")
	for i := range w.Rules {
		c.row(&w.Rules[i], r)
	}
	for name, buckets := range w.Latency {
		c.texts(name)
		c.numbers(buckets...)
	}
}

func (c *summaryCheck) row(row *RuleRow, r history.Resolution) {
	c.texts(row.Name, row.Limit, row.Mode)
	c.counts(row.Totals)
	c.counts(row.Counts)
	c.rates(Rates{Decisions: row.Rate})
	c.require(row.DeniedShare >= 0 && row.DeniedShare <= 1 && row.ShadowShare >= 0 && row.ShadowShare <= 1, "share")
	c.require(len(row.Decisions) <= r.Slots() && len(row.DeniedOrShadowed) <= r.Slots(), "sparkline")
	c.numbers(row.Decisions...)
	c.numbers(row.DeniedOrShadowed...)
	if p := row.Permits; p != nil {
		c.numbers(p.Granted, p.Released, p.NotHeld, p.HeldIDs)
	}
}

func (c *summaryCheck) top(t *peerTop) {
	c.require(t.Sampling >= 0 && len(t.Keys) <= maxPeerKeys, "top keys")
	c.numbers(t.Total, t.Floor)
	for i := range t.Keys {
		k := &t.Keys[i]
		c.texts(k.Rule, k.Limit)
		c.numbers(k.Count, k.Shadowed)
		c.require(len(k.Key) <= maxPeerKeyBytes && k.Length >= len(k.Key) && k.Error <= k.Count, "top key")
	}
}
