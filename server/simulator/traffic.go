package simulator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/spelling"
)

// A Traffic is a named pattern of arrivals. Its numbers follow the limit, so that it
// shows the same with every limit.
type Traffic struct {
	Name  string
	About string

	arrivals func(penstock.Limit) []Arrival
	onClock  bool // the fixed window of the comparison begins on the clock
}

// DefaultTraffic is the pattern that tells most algorithms apart.
const DefaultTraffic = "edge"

// Traffics are the patterns, in the order in which they are shown.
var Traffics = []Traffic{
	{Name: "steady", About: "one and a half times the limit, evenly spaced, for three periods", arrivals: steady},
	{Name: "burst", About: "twice the limit at one instant", arrivals: burst},
	{Name: "edge", About: "the whole limit just before a window ends, and again just after", arrivals: edge, onClock: true},
	{Name: "retry-storm", About: "twice the limit at once, again after every tenth of a period", arrivals: retryStorm},
	{Name: "poisson", About: "the limit on average, at random, for three periods; the same each time", arrivals: poisson},
}

func trafficNamed(name string) (Traffic, error) {
	var names []string
	for _, t := range Traffics {
		if t.Name == name {
			return t, nil
		}
		names = append(names, t.Name)
	}
	if near := spelling.Similar(name, names); near != "" {
		return Traffic{}, fmt.Errorf("%w: no traffic %q; did you mean %q?", ErrBadTraffic, name, near)
	}
	return Traffic{}, fmt.Errorf("%w: no traffic %q; want %s", ErrBadTraffic, name, strings.Join(names, ", "))
}

// maxPieces is into how many requests the units of a limit are divided. Larger limits
// have requests of a higher cost.
const maxPieces = 100

// pieces returns the costs of requests that use up the limit.
func pieces(l penstock.Limit) (costs []int64) {
	left := max(l.Count, 1)
	cost := (left-1)/maxPieces + 1
	for ; left > 0; left -= cost {
		costs = append(costs, min(cost, left))
	}
	return costs
}

// at returns requests of these costs at one instant.
func at(when time.Duration, costs []int64) (all []Arrival) {
	for _, cost := range costs {
		all = append(all, Arrival{At: when, Cost: cost})
	}
	return all
}

func steady(l penstock.Limit) (all []Arrival) {
	const periods = 3
	costs := pieces(l)
	n := len(costs) * periods * 3 / 2
	gap := float64(periods*l.Normal().Period) / float64(n)
	for i := range n {
		all = append(all, Arrival{At: time.Duration(float64(i) * gap), Cost: costs[i%len(costs)]})
	}
	return all
}

func burst(l penstock.Limit) []Arrival { return at(0, slices.Repeat(pieces(l), 2)) }

// edge has its two bursts a twentieth of a period before and after the first edge,
// which is half a period after the start.
func edge(l penstock.Limit) []Arrival {
	period, costs := l.Normal().Period, pieces(l)
	return append(at(period/2-period/20, costs), at(period/2+period/20, costs)...)
}

func retryStorm(l penstock.Limit) (all []Arrival) {
	wave := slices.Repeat(pieces(l), 2)
	for i := range 11 {
		all = append(all, at(l.Normal().Period/10*time.Duration(i), wave)...)
	}
	return all
}

func poisson(l penstock.Limit) (all []Arrival) {
	period, costs := float64(l.Normal().Period), pieces(l)
	random := rand.New(rand.NewPCG(1, 2))
	when := 0.0
	for {
		when += random.ExpFloat64() * period / float64(len(costs))
		if when >= 3*period {
			return all
		}
		all = append(all, Arrival{At: time.Duration(when), Cost: costs[len(all)%len(costs)]})
	}
}
