package overrides

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A usesRecorder records what is written to a shared copy.
type usesRecorder struct {
	SharedCopy
	ids  []string
	err  error
	used int64 // Unix seconds by another daemon
}

// ReadUses returns the same use of each override.
func (r *usesRecorder) ReadUses(_ context.Context, ids []string) ([]int64, error) {
	return slices.Repeat([]int64{r.used}, len(ids)), nil
}

func (r *usesRecorder) WriteUses(_ context.Context, uses map[string]int64) error {
	r.ids = append(r.ids, slices.Sorted(maps.Keys(uses))...)
	return r.err
}

// Each use is written once, unless that failed.
func TestUsesAreWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newSet(t, ban("k=1"), ban("k=2")), &usesRecorder{err: errors.New("unavailable")}
		s.shared = r
		for _, step := range []struct {
			use  string
			err  error
			want []string
		}{
			{use: "k=1", err: errors.New("unavailable"), want: []string{"r\x00k=1"}},
			{want: []string{"r\x00k=1"}},
			{want: nil},
			{use: "k=2", want: []string{"r\x00k=2"}},
		} {
			s.Index("r").Find(step.use)
			r.ids, r.err = nil, step.err
			time.Sleep(time.Minute)
			if s.WriteUses(t.Context()); !slices.Equal(r.ids, step.want) {
				t.Errorf("after a use of %q: wrote %q, want %q", step.use, r.ids, step.want)
			}
		}
	})
}

// An override was last used after it was set: uses of earlier ones of the same key, here or by another daemon, are
// not its own.
func TestUsesOfAnEarlierOverrideAreNotThoseOfTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newSet(t, ban("k=1")), &usesRecorder{}
		s.Index("r").Find("k=1")
		first := time.Now().Unix()
		used := func() time.Time {
			list := s.List("", "")
			s.shared = r
			s.AddUses(t.Context(), list)
			s.shared = nil
			return list[0].Used
		}
		if used().Unix() != first {
			t.Errorf("used %v, want now", used())
		}
		for _, deleted := range []bool{false, true} {
			time.Sleep(time.Minute)
			next := ban("k=1")
			if deleted {
				if err := s.Delete(t.Context(), []Override{next}); err != nil {
					t.Fatal(err)
				}
			}
			next.Reason = "another"
			if err := s.Put(t.Context(), []Override{next}); err != nil {
				t.Fatal(err)
			}
			for _, r.used = range []int64{0, first, time.Now().Unix() - 1} {
				if at := used(); !at.IsZero() {
					t.Errorf("deleted before: %t, used elsewhere at %d: last used %v, want never", deleted, r.used, at)
				}
			}
			if r.used = time.Now().Unix() + 1; used().Unix() != time.Now().Unix() {
				t.Errorf("used %v, want now", used())
			}
			r.used = 0
			s.Index("r").Find("k=1")
		}
	})
}
