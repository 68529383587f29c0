package replay

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/accesslog"
	"github.com/penstock-io/penstock/server/engine"
)

// What a limit decides without the engine, the engine decides, too.
func TestWorldDecidesAsTheEngineDoes(t *testing.T) {
	for _, limit := range []string{
		"5/1s", "20/1m burst=3", "7/10s fixed-window", "7/10s sliding-window", "7/10s sliding-log", "7/10s rolling-window", "9/10s leaky-bucket", "100/day fixed-window", "0/1s fixed-window",
	} {
		for _, further := range []string{"", "keep_free: 1, ", "shadow_mode: true, ", "also: 30/1h fixed-window, "} {
			text := fmt.Sprintf("domain: d\ndescriptors: [{key: k, %slimit: %s}]", further, limit)
			set, err := rules.Parse(rules.File{Name: "d.yaml", Text: []byte(text)})
			if err != nil {
				continue // no unit of 0 can be kept free
			}
			fast, slow := newWorld(set, 1000, 1), newWorld(set, 1000, 1)
			slow.limiters = make([]*penstock.Limiter, len(set.Rules()))
			random := rand.New(rand.NewPCG(1, 2))
			at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC).UnixNano()
			for range 500 {
				at += random.Int64N(int64(time.Second))
				ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: "k", Value: fmt.Sprint(random.IntN(3))}}, Cost: random.Int64N(3)}}
				fast.match("d", ds)
				slow.match("d", ds)
				over, ok := fast.decide(spread, &accesslog.Request{Spread: at})
				wantOver, wantOK := slow.decide(spread, &accesslog.Request{Spread: at})
				got, want := fast.readings[spread].result.Statuses[0], slow.readings[spread].result.Statuses[0]
				if over != wantOver || ok != wantOK || got != want {
					t.Fatalf("%s: %+v is decided as %v, %v, %+v; want %v, %v, %+v", text, ds, over, ok, got, wantOver, wantOK, want)
				}
			}
		}
	}
}
