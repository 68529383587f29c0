package topkeys

import (
	"cmp"
	"slices"
	"time"
)

// A Summary is what a list knows: the counts of its keys, and bounds of all others.
type Summary struct {
	Since    time.Time // when counting began
	Sampling int       // the largest step since then; 1 if every decision was counted
	Total    uint64    // weight of all decisions
	Floor    uint64    // the most that a key has which is not among the entries
	Entries  []Entry
}

// An Entry is the count of a key: at least Guaranteed and at most Count, of what was
// sampled.
type Entry struct {
	Rule  string // "" for a limit in requests
	Limit string // of a limit in requests

	Key    string // its first bytes, if Length is more
	Length int
	Rest   uint32 // checksum of a key that was cut

	Count    uint64
	Error    uint64
	Shadowed uint64 // how many of the denials were not enforced, while the key was in the list
}

// Guaranteed returns how many decisions the key has at least.
func (e *Entry) Guaranteed() uint64 { return e.Count - e.Error }

// identity returns what two entries about the same key have in common.
func (e *Entry) identity() Entry {
	return Entry{Rule: e.Rule, Limit: e.Limit, Key: e.Key, Length: e.Length, Rest: e.Rest}
}

// Merge returns the summary of several streams together. A key that one of them lacks may
// have had that one's Floor there, so it is added to the key's count and to its error. All
// entries are kept: the Floor of the result is the sum of the others'.
func Merge(parts ...Summary) Summary {
	merged := Summary{Sampling: 1}
	sums := map[Entry]*mergedEntry{}
	for i := range parts {
		merged.add(i, &parts[i], sums)
	}
	merged.Entries = make([]Entry, 0, len(sums))
	for _, sum := range sums {
		missing := merged.Floor - sum.floors
		sum.Count += missing
		sum.Error += missing
		merged.Entries = append(merged.Entries, sum.Entry)
	}
	merged.sort()
	return merged
}

// A mergedEntry is the sum of a key's entries.
type mergedEntry struct {
	Entry
	floors uint64 // of the parts that the key is in
	part   int    // the last of them
}

func (s *Summary) add(number int, part *Summary, sums map[Entry]*mergedEntry) {
	s.Total += part.Total
	s.Floor += part.Floor
	s.Sampling = max(s.Sampling, part.Sampling)
	if s.Since.IsZero() || part.Since.Before(s.Since) {
		s.Since = part.Since
	}
	for i := range part.Entries {
		e := &part.Entries[i]
		sum := sums[e.identity()]
		if sum == nil {
			sum = &mergedEntry{Entry: e.identity(), part: -1}
			sums[e.identity()] = sum
		}
		sum.Count += e.Count
		sum.Error += e.Error
		sum.Shadowed += e.Shadowed
		if sum.part != number { // two limits may have the same text
			sum.floors, sum.part = sum.floors+part.Floor, number
		}
	}
}

// Agree narrows the bounds of two summaries of the same decisions by what each of them proves: a key that was denied
// so often has asked at least as often, and one that has asked so often was not denied more often. Each key that
// was denied is among those that asked then.
func Agree(asked, denied *Summary) {
	known := asked.index()
	for i := range denied.Entries {
		d := &denied.Entries[i]
		at, ok := known[d.identity()]
		if !ok {
			at = len(asked.Entries)
			asked.Entries = append(asked.Entries, asked.missing(d))
		}
		a := &asked.Entries[at]
		a.bound(max(a.Guaranteed(), d.Guaranteed()), a.Count)
		d.bound(d.Guaranteed(), min(d.Count, a.Count))
	}
	asked.sort()
	denied.sort()
}

func (s *Summary) index() map[Entry]int {
	known := make(map[Entry]int, len(s.Entries))
	for i := range s.Entries {
		known[s.Entries[i].identity()] = i
	}
	return known
}

// Finder returns a function that returns the summary's entry for another's key.
func (s *Summary) Finder() func(e *Entry) Entry {
	known := s.index()
	return func(e *Entry) Entry {
		if at, ok := known[e.identity()]; ok {
			return s.Entries[at]
		}
		return s.missing(e)
	}
}

// missing returns what is known of another's key that the summary lacks: it has from none to the Floor.
func (s *Summary) missing(e *Entry) Entry {
	own := e.identity()
	own.Count, own.Error = s.Floor, s.Floor
	return own
}

// bound sets the bounds of a count. What was guaranteed stays so, whatever the other says.
func (e *Entry) bound(guaranteed, count uint64) {
	e.Count = max(count, guaranteed)
	e.Error = e.Count - guaranteed
}

// sort sorts the entries, the largest guaranteed count first. The rest of the order is
// arbitrary, but always the same.
func (s *Summary) sort() {
	slices.SortFunc(s.Entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.Guaranteed(), a.Guaranteed()), cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rest, b.Rest))
	})
}

// Top returns the summary with the first n entries. The Floor covers the others.
func (s Summary) Top(n int) Summary {
	n = min(n, len(s.Entries))
	for i := range s.Entries[n:] {
		s.Floor = max(s.Floor, s.Entries[n+i].Count)
	}
	s.Entries = s.Entries[:n]
	return s
}
