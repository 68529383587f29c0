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
	ids []string
	err error
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
