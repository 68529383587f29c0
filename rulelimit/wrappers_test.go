package rulelimit_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/wraptest"
	"github.com/penstock-io/penstock/rulelimit"
	"github.com/penstock-io/penstock/rules"
)

// fixedRules are a source whose rules never change.
type fixedRules struct{ *rules.Set }

func (r fixedRules) Load(context.Context) (*rules.Set, error) { return r.Set, nil }
func (fixedRules) Watch(ctx context.Context, _ rules.Use)     { <-ctx.Done() }
func (fixedRules) String() string                             { return "fixed rules" }

func TestRulesDecideAlikeWhateverWrapsStore(t *testing.T) {
	wraptest.Check(t, wraptest.Way{Name: "rulelimit", OneStore: true, Open: func(t testing.TB, limiters []*penstock.Limiter) func(context.Context, []string) bool {
		text := "domain: shop\ndescriptors:\n"
		for i, l := range limiters {
			limit := l.Limit()
			limit.Name = ""
			text += fmt.Sprintf("  - {key: k%d, limit: %q}\n", i, limit.String())
		}
		set, err := rules.Parse(rules.File{Name: "rules.yaml", Text: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		lim, err := rulelimit.New(context.Background(), fixedRules{set}, limiters[0].Store(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lim.Close() })
		return func(ctx context.Context, keys []string) bool {
			var ds [][]penstock.Entry
			for i, key := range keys {
				ds = append(ds, entries(fmt.Sprintf("k%d", i), key))
			}
			a, err := lim.Allow(ctx, "shop", ds...)
			if err != nil {
				t.Error(err)
			}
			return a.Allowed
		}
	}})
}
