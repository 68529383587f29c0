package observe_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/observe"
)

// A topDaemon is one of several daemons, with few counters, so that it forgets keys.
type topDaemon struct {
	*observe.Observer
	keys    *topkeys.Tracker
	sources []*topkeys.Source
}

// No key of a list is denied more often than it asked: of one daemon or of all, by either order, under all rules or one,
// and whatever each daemon has forgotten, left out for others, or begun to count later.
func TestTopKeysAreDeniedAtMostAsOftenAsTheyAsked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, b := time.Unix(1_800_000_000, 0), board{}
		clock := func() time.Time { return now }
		var all []*topDaemon
		for i := range rapid.IntRange(1, 3).Draw(t, "daemons") {
			d := &topDaemon{keys: topkeys.New(&topkeys.Options{Now: clock, Counters: rapid.SampledFrom([]int{2, 9, 400}).Draw(t, "counters")})}
			d.Observer = observe.New(engine.New(penstock.NewMemory(nil), nil), &observe.Options{Name: fmt.Sprint("d", i), TopKeys: d.keys, Board: b, Now: clock})
			d.sources = []*topkeys.Source{d.keys.NewSource("a"), d.keys.NewSource("b")}
			all = append(all, d)
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			d := rapid.SampledFrom(all).Draw(t, "daemon")
			d.record(t)
			d.PublishOnce(t.Context())
			now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, 59 * time.Second, 5 * time.Minute}).Draw(t, "pause"))
			rapid.SampledFrom(all).Draw(t, "asked").check(t)
		}
	})
}

// record tells a daemon of decisions about a key, or about many of which each is new.
func (d *topDaemon) record(t *rapid.T) {
	source := rapid.SampledFrom(d.sources).Draw(t, "rule")
	first, n := rapid.IntRange(0, 9).Draw(t, "key"), rapid.SampledFrom([]int{1, 1, 1, 300}).Draw(t, "keys")
	allowed, denied := rapid.Uint64Range(0, 9).Draw(t, "allowed"), rapid.Uint64Range(0, 9).Draw(t, "denied")
	for k := range n {
		d.keys.RecordReport(source, fmt.Sprint("k", first+k), allowed, denied)
	}
}

func (d *topDaemon) check(t *rapid.T) {
	one := "a"
	for _, scope := range []string{observe.ScopeDaemon, observe.ScopeAll} {
		for _, by := range []string{observe.ByAsked, observe.ByDenied} {
			for _, rule := range []*string{nil, &one} {
				top := d.Top(t.Context(), observe.TopQuery{Scope: scope, By: by, Rule: rule, N: 500})
				if top.Totals.Denied > top.Totals.Asked {
					t.Fatalf("%s by %s: %+v", scope, by, top.Totals)
				}
				for _, k := range top.Keys {
					if k.Denied.Count > k.Asked.Count || k.Denied.Guaranteed > k.Asked.Guaranteed || k.Asked.Guaranteed > k.Asked.Count || k.Denied.Guaranteed > k.Denied.Count {
						t.Fatalf("%s by %s: %s has asked %+v and was denied %+v", scope, by, k.Key, k.Asked, k.Denied)
					}
				}
			}
		}
	}
}
