package server

import (
	"hash/maphash"
	"log/slog"
	"sync"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/lograte"
	"github.com/penstock-io/penstock/internal/spelling"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// An unmatchedLog warns of descriptors that no rule matches, once for each unknown domain
// and for each list of keys that no rule has: a typo in a caller or in a rule file means
// that nothing is limited. Values of known keys are not reported, because rules for some
// values only are common. It remembers a bounded number of them, since callers choose the
// names.
type unmatchedLog struct {
	log     *slog.Logger
	setting string // which one changes what happens, and its value
	sampler *lograte.Sampler
	seed    maphash.Seed

	mu     sync.RWMutex
	rules  *rules.Set
	known  map[uint64]bool // the key lists that have rules
	warned map[uint64]bool
}

const (
	maxUnmatchedWarned = 100

	// unmatchedLines is how many warnings a burst of new names can cause.
	unmatchedLines = 10
)

func newUnmatchedLog(log *slog.Logger, setting string) *unmatchedLog {
	sampler, _ := lograte.NewSampler(penstock.PerSecond(unmatchedLines)) // no error: the limit is valid
	return &unmatchedLog{log: log, setting: setting, sampler: sampler, seed: maphash.MakeSeed()}
}

// setRules forgets what was warned of, because it may have rules now.
func (u *unmatchedLog) setRules(s *rules.Set) {
	known := map[uint64]bool{}
	for _, d := range s.Domains() {
		for _, list := range d.KeyLists() {
			known[u.hash(d.Name, []rules.Entry{{Key: list}})] = true
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rules, u.known, u.warned = s, known, map[uint64]bool{}
}

// report is the engine's OnUnmatched.
func (u *unmatchedLog) report(domain string, entries []rules.Entry) {
	hash := u.hash(domain, entries)
	u.mu.RLock()
	done := u.known[hash] || u.warned[hash] || len(u.warned) >= maxUnmatchedWarned
	u.mu.RUnlock()
	if done {
		return
	}
	if _, ok := u.sampler.Allow(); !ok {
		return // it is reported when it occurs again
	}
	set, n := u.remember(hash)
	if set != nil {
		u.warn(set, domain, entries)
	}
	if n == maxUnmatchedWarned {
		u.log.Warn("too many unknown domains and keys, no more are logged until the rules change", "logged", n)
	}
}

// remember returns the rules to warn about and how many warnings there are, or nil if another
// request was faster. It does not log, because a log may block, and then only its caller.
func (u *unmatchedLog) remember(hash uint64) (set *rules.Set, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.rules == nil || u.warned[hash] || len(u.warned) >= maxUnmatchedWarned {
		return nil, 0
	}
	u.warned[hash] = true
	return u.rules, len(u.warned)
}

// warn logs a descriptor without a rule. If the domain has no rules, its keys do not
// matter.
func (u *unmatchedLog) warn(set *rules.Set, domain string, entries []rules.Entry) {
	name, keys := requestlog.Cut(domain), requestlog.Cut(rules.KeyList(entries))
	if d := set.Domain(domain); d != nil {
		u.log.Warn("no rule has these keys", "domain", name, "keys", keys,
			"nearest", spelling.Nearest(keys, d.KeyLists()), "setting", u.setting)
		return
	}
	u.log.Warn("no rules for this domain", "domain", name,
		"nearest", spelling.Nearest(name, set.DomainNames()), "setting", u.setting)
}

// hash identifies a domain and a list of keys, without building the text of the list. A
// collision costs one warning.
func (u *unmatchedLog) hash(domain string, entries []rules.Entry) uint64 {
	var h maphash.Hash
	h.SetSeed(u.seed)
	_, _ = h.WriteString(domain)
	for i := range entries {
		_ = h.WriteByte("\x00,"[min(i, 1)])
		_, _ = h.WriteString(entries[i].Key)
	}
	return h.Sum64()
}
