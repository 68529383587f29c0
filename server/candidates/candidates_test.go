package candidates_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/candidates"
)

func parse(t *testing.T, descriptors string) *rules.Set {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "rules.yaml", Text: []byte("domain: shop\ndescriptors: [" + descriptors + "]")})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func limit(t *testing.T, text string) penstock.Limit {
	t.Helper()
	l, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestComparisonCountsBothLimits(t *testing.T) {
	var keys candidates.Keys
	trial := candidates.Trial{Rule: "shop/user", Limit: "9/1m", Candidate: "3/1m", Origin: candidates.FromRule}
	c := keys.Compare(&trial, nil)
	for _, request := range []struct {
		key                string
		inForce, candidate bool
	}{{"user=a", false, false}, {"user=b", false, true}, {"user=b", false, true}, {"user=c", true, false}, {"user=d", true, true}} {
		c.Count(request.key, request.inForce, request.candidate)
	}
	if got, want := c.Counts(), (candidates.Counts{Requests: 5, Denied: 2, WouldDeny: 3, NewlyDenied: 2, NewlyAllowed: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for candidate, want := range map[bool]string{true: "user=b", false: "user=c"} {
		if top := c.Differing(candidate, 10).Entries; len(top) != 1 || top[0].Key != want {
			t.Errorf("denied by the candidate: %t: %+v, want only %s", candidate, top, want)
		}
	}
	same := trial
	if again := keys.Compare(&same, []*candidates.Comparison{c}); again != c {
		t.Error("the same trial begins anew")
	}
	same.Candidate = "4/1m"
	if other := keys.Compare(&same, []*candidates.Comparison{c}); other == c || other.Counts().Requests != 0 || len(other.Differing(true, 10).Entries) != 0 {
		t.Errorf("another trial has %+v and %+v of the first", other.Counts(), other.Differing(true, 10))
	}
}

func TestComparisonWithoutKeysStillCounts(t *testing.T) {
	keys := candidates.Keys{None: true}
	c := keys.Compare(&candidates.Trial{Rule: "shop/user"}, nil)
	c.Count("user=a", false, true)
	if c.Counts().NewlyDenied != 1 || len(c.Differing(true, 10).Entries) != 0 {
		t.Errorf("got %+v and %+v", c.Counts(), c.Differing(true, 10))
	}
}

// What is tried at runtime is in the place of the file's candidate until its time, or until it is ended.
func TestSetTriesUntilATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int64
		s := candidates.NewSet(func(...penstock.Limit) error { return nil }, func() { changes.Add(1) })
		rule := parse(t, `{key: user, limit: 9/1m, candidate: 5/1m}`).Rule("shop/user")
		want := func(text string, from candidates.Origin, changed int64) {
			t.Helper()
			synctest.Wait()
			if c, trial := s.Of(rule); c == nil || trial.Candidate != text || trial.Limit != "9/1m" || trial.Origin != from || changes.Load() != changed {
				t.Errorf("%+v after %d changes, want %s from %s after %d", trial, changes.Load(), text, from, changed)
			}
		}
		want("5/1m", candidates.FromRule, 0)
		if err := s.Try(rule, limit(t, "3/1m"), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Nanosecond)
		want("3/1m", candidates.FromAPI, 1)
		time.Sleep(time.Nanosecond)
		want("5/1m", candidates.FromRule, 2)
		if err := s.Try(rule, limit(t, "4/1m"), time.Time{}); err != nil {
			t.Fatal(err)
		}
		want("4/1m", candidates.FromAPI, 3)
		if !s.End(rule.Name) || s.End(rule.Name) {
			t.Error("a candidate must end once")
		}
		want("5/1m", candidates.FromRule, 5)
	})
}

func TestSetRefusesWhatCannotBeCounted(t *testing.T) {
	full := errors.New("the store has no room")
	s := candidates.NewSet(func(...penstock.Limit) error { return full }, func() { t.Error("changed") })
	set := parse(t, `{key: user, limit: 9/1m}, {key: held, id: request, limit: 9/30s concurrent}`)
	if err := s.Try(set.Rule("shop/user"), limit(t, "3/1m"), time.Time{}); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	if err := s.Try(set.Rule("shop/held"), limit(t, "3/1m"), time.Time{}); err == nil || errors.Is(err, full) {
		t.Errorf("a candidate beside permits: %v", err)
	}
	if c, _ := s.Of(set.Rule("shop/user")); c != nil {
		t.Errorf("%v is tried nevertheless", c.Limit)
	}
}

func TestPairsCompareWhatDiffers(t *testing.T) {
	inForce := parse(t, `{key: same, limit: 9/1m}, {key: less, limit: 9/1m}, {key: gone, limit: 9/1m}`)
	tried := parse(t, `{key: same, limit: 9/1m}, {key: less, limit: 3/1m, also: 50/1h}, {key: new, limit: 1/1m}, {key: free, unlimited: true}`)
	got := map[string]string{}
	for _, p := range candidates.Pairs(inForce, tried) {
		switch {
		case p.Rule == nil:
		case p.Trial != nil:
			got[p.Rule.Name] = p.Trial.Limit + " → " + p.Trial.Candidate
		case p.Same:
			got[p.Rule.Name] = "same"
		}
	}
	want := map[string]string{"shop/same": "same", "shop/less": "9/1m → 3/1m, 50/1h", "shop/new": " → 1/1m"}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s: %q, want %q", name, got[name], text)
		}
	}
}
