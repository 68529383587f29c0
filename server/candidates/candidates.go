// Package candidates compares limits that are tried with those in force: what both said of the same requests, and the
// keys of which they said different things. The engine counts them.
package candidates

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
)

// An Origin is where a candidate comes from.
type Origin string

// The origins.
const (
	FromRule Origin = "rule" // candidate: of the rule
	FromFile Origin = "file" // a whole set of rules that is tried
	FromAPI  Origin = "api"  // set at runtime
)

// A Trial is a candidate of a rule.
type Trial struct {
	Rule      string
	Limit     string // those in force; "" if there is no such rule
	Candidate string
	Origin    Origin
	Until     time.Time // when it ends; zero if it does not
}

// A Comparison counts what both limits said of the requests of a rule. It is safe for concurrent use.
type Comparison struct {
	Trial
	Since time.Time

	counts [2][2]atomic.Uint64 // by the denial of the limit in force, and by that of the candidate
	keys   *Keys
	differ [2]*topkeys.Source // keys that only the limit in force denies, and only the candidate
}

// Count counts a request by whether the limits deny it.
func (c *Comparison) Count(key string, inForce, candidate bool) {
	c.counts[index(inForce)][index(candidate)].Add(1)
	if inForce != candidate {
		c.keys.tracker().Record(c.differ[index(candidate)], key, topkeys.Allowed, 1, 0)
	}
}

func index(denied bool) int {
	if denied {
		return 1
	}
	return 0
}

// Of returns how many requests the limit in force and the candidate denied, or did not.
func (c *Comparison) Of(inForce, candidate bool) uint64 {
	return c.counts[index(inForce)][index(candidate)].Load()
}

// Counts are numbers of requests that were compared.
type Counts struct {
	Requests     uint64 `json:"requests"`
	Denied       uint64 `json:"denied"`     // by the limit in force
	WouldDeny    uint64 `json:"would_deny"` // the candidate
	NewlyDenied  uint64 `json:"newly_denied"`
	NewlyAllowed uint64 `json:"newly_allowed"`
}

// Counts returns how many requests were compared, and how.
func (c *Comparison) Counts() Counts {
	both, newly, before := c.Of(true, true), c.Of(false, true), c.Of(true, false)
	return Counts{
		Requests: c.Of(false, false) + both + newly + before, Denied: both + before, WouldDeny: both + newly,
		NewlyDenied: newly, NewlyAllowed: before,
	}
}

// Differing returns the keys with the most requests that only the candidate denies, or only the limit in force.
func (c *Comparison) Differing(candidate bool, most int) topkeys.Summary {
	if c.keys.None {
		return topkeys.Summary{}
	}
	asked, _ := c.keys.tracker().Keys(&c.differ[index(candidate)].Rule)
	return asked.Top(most)
}

// keysKept is how many keys are told apart of all candidates.
const keysKept = 1024

// Keys count the keys of which limits say different things, of the last day or two. They need no memory before the
// first comparison.
type Keys struct {
	None bool // none are counted

	once     sync.Once
	made     *topkeys.Tracker
	compared atomic.Uint64 // comparisons, which are told apart by their numbers
}

func (k *Keys) tracker() *topkeys.Tracker {
	if k.None {
		return nil
	}
	k.once.Do(func() { k.made = topkeys.New(&topkeys.Options{Counters: keysKept, Generation: 24 * time.Hour}) })
	return k.made
}

// Compare returns the comparison of a trial: the one that is among the old ones, or a new one.
func (k *Keys) Compare(t *Trial, old []*Comparison) *Comparison {
	for _, c := range old {
		if c.Trial == *t {
			return c
		}
	}
	c := &Comparison{Trial: *t, Since: time.Now(), keys: k}
	number := strconv.FormatUint(k.compared.Add(1), 10)
	for i, mark := range []string{"//allowed/", "//denied/"} { // no rule has such a name, nor an earlier comparison
		c.differ[i] = k.tracker().NewSource(t.Rule + mark + number)
	}
	return c
}

// A Set has the candidates beside those in the rules: what was set at runtime, which ends with the process, and a set of
// rules that is tried as a whole. It is safe for concurrent use.
type Set struct {
	claim   func(...penstock.Limit) error
	changed func()

	mu     sync.Mutex
	byRule map[string]atRuntime
	whole  *rules.Set
}

type atRuntime struct {
	limit penstock.Limit
	until time.Time
}

// NewSet returns an empty set. Claim says whether the store can decide under a limit, and changed is called after each
// change.
func NewSet(claim func(...penstock.Limit) error, changed func()) *Set {
	return &Set{claim: claim, changed: changed, byRule: map[string]atRuntime{}}
}

// Try sets a candidate of a rule until a time, or if that is zero, until the process ends. The error says why it cannot
// be counted.
func (s *Set) Try(rule *rules.Rule, l penstock.Limit, until time.Time) error {
	c, err := rule.NewCandidate(l)
	if err == nil {
		err = s.claim(c.Limit)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.byRule[rule.Name] = atRuntime{l, until}
	s.mu.Unlock()
	if !until.IsZero() {
		time.AfterFunc(time.Until(until), s.changed)
	}
	s.changed()
	return nil
}

// End ends a candidate that Try has set, and reports whether there was one.
func (s *Set) End(rule string) bool {
	s.mu.Lock()
	_, ok := s.byRule[rule]
	delete(s.byRule, rule)
	s.mu.Unlock()
	s.changed()
	return ok
}

// TryRules tries a set of rules as a whole, in place of an earlier one. See [rules.Set.AsCandidates].
func (s *Set) TryRules(whole *rules.Set) {
	s.mu.Lock()
	s.whole = whole
	s.mu.Unlock()
	s.changed()
}

// Rules returns the rules that are tried as a whole, or nil.
func (s *Set) Rules() *rules.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole
}

// Of returns the candidate of a rule, or nil: the one that was set and has not ended, or that of its file.
func (s *Set) Of(r *rules.Rule) (*rules.Rule, *Trial) {
	s.mu.Lock()
	set, ok := s.byRule[r.Name]
	s.mu.Unlock()
	if ok && (set.until.IsZero() || time.Now().Before(set.until)) {
		if c, err := r.NewCandidate(set.limit); err == nil {
			return c, newTrial(r, c, FromAPI, set.until)
		}
	}
	if r.Candidate == nil {
		return nil, nil
	}
	return r.Candidate, newTrial(r, r.Candidate, FromRule, time.Time{})
}

func newTrial(inForce, c *rules.Rule, from Origin, until time.Time) *Trial {
	t := &Trial{Rule: c.Name, Candidate: limitText(c), Origin: from, Until: until}
	if inForce != nil {
		t.Limit = limitText(inForce)
	}
	return t
}

// limitText returns the limits of a rule.
func limitText(r *rules.Rule) string {
	if r.Unlimited {
		return "unlimited"
	}
	text := r.Limit.WithName("").String()
	if r.Also != nil {
		text += ", " + limitText(r.Also)
	}
	return text
}

// A Pair is a rule of a set that is tried as a whole.
type Pair struct {
	Rule    *rules.Rule
	InForce *rules.Rule // of the same name; may be nil
	Trial   *Trial      // nil if it is not compared: a further limit, or the same as in force
	Same    bool        // as the rule in force
}

// Pairs returns the rules of a set that is tried, by Rule.Index. Those that cannot be counted are zero.
func Pairs(inForce, tried *rules.Set) []Pair {
	byName, further := map[string]*rules.Rule{}, map[*rules.Rule]bool{}
	for _, r := range inForce.Rules() {
		byName[r.Name] = r
	}
	for _, r := range tried.Rules() {
		further[r.Also] = true
	}
	all := make([]Pair, len(tried.Rules()))
	for i, r := range tried.Rules() {
		old := byName[r.Name]
		switch same := old != nil && r.SameLimits(old); {
		case r.CandidateProblem() != nil:
		case further[r] || same:
			all[i] = Pair{Rule: r, InForce: old, Same: same}
		default:
			all[i] = Pair{Rule: r, InForce: old, Trial: newTrial(old, r, FromFile, time.Time{})}
		}
	}
	return all
}
