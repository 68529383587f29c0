package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/regions"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/client"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/prometheus/client_golang/prometheus"
)

// withRegions lets limits of rules that are global hold over all regions together. It is outside of the region's own
// wrappers: units in the memory of a process would be outside of what home keeps free.
func (s *Server) withRegions(ctx context.Context, local penstock.Store) (penstock.Store, error) {
	c := s.config
	if c.Home == "" {
		return local, nil
	}
	if s.pools == nil {
		return nil, fmt.Errorf("%s: needs a Redis as --store", c.origin("home"))
	}
	home, err := s.openHome(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.origin("home"), err)
	}
	store, err := regions.New(local, s.pools, home, &regions.Options{
		Regions: c.Regions, RoundTrip: c.RoundTrip, Timeout: c.HomeTimeout, Global: s.globalSettings, OnChange: s.onHomeChange,
	})
	if err != nil {
		return nil, err
	}
	s.regions = store
	s.metrics.registry.MustRegister(regionsCollector(store))
	return store, nil
}

// openHome returns the store of the home region: its Redis, or a daemon there.
func (s *Server) openHome(ctx context.Context) (penstock.Store, error) {
	c := s.config
	if strings.HasPrefix(c.Home, "http") {
		o := &client.Options{HTTP: &http.Client{Timeout: c.HomeTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: homeConnections}}}
		if c.HomeTokenFile != "" {
			var err error
			if o.Token, err = ReadToken(c.HomeTokenFile); err != nil {
				return nil, err
			}
		}
		return client.New(c.Home, o)
	}
	limited, cancel := context.WithTimeout(ctx, max(c.connectTimeout(), c.HomeTimeout))
	defer cancel()
	home, err := redisstore.Open(limited, c.Home, &redisstore.Options{Prefix: c.RedisPrefix, Timeout: c.HomeTimeout, AllowUnavailable: true})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, func(context.Context) error {
		home.Close()
		return nil
	})
	return home, nil
}

// homeConnections are kept open to a daemon of the home region.
const homeConnections = 64

// parseHome leaves the URL out of its errors: it may contain a password.
func parseHome(text string) (string, error) {
	scheme, _, _ := strings.Cut(text, ":")
	switch scheme {
	case "http", "https":
		_, err := client.New(text, nil)
		return text, err
	case "redis", "rediss", "unix", "redis-sentinel", "redis-cluster":
		return text, nil
	}
	return "", fmt.Errorf("scheme %q: want https:// or http:// of a daemon in the home region, or the URL of its Redis", scheme)
}

// checkRegions returns an error if settings about regions contradict each other.
func (c *Config) checkRegions() error {
	switch {
	case c.Home != "" && c.Regions == 0:
		return fmt.Errorf("%s: requires --regions, how many regions share it, this one included", c.origin("home"))
	case c.Home == "" && c.Regions != 0:
		return fmt.Errorf("%s: requires --home, the region that owns the limits", c.origin("regions"))
	}
	return nil
}

// globalSettings is the Global of [regions.Options].
func (s *Server) globalSettings(l penstock.Limit) (regions.Settings, bool) {
	g := s.storePolicies.ForLimit(&l).Global
	if g == nil {
		return regions.Settings{}, false
	}
	return settingsOf(g), true
}

func settingsOf(g *rules.Global) regions.Settings {
	return regions.Settings{Pool: g.Pool, Age: g.Age, OnPartition: onPartition[g.OnPartition]}
}

var onPartition = map[rules.OnStoreFailure]regions.OnPartition{
	rules.FailDefault: regions.Deny, rules.FailDeny: regions.Deny, rules.FailLocal: regions.Local, rules.FailAllow: regions.Allow,
}

// DescribeRegions returns in words what so many regions hold of a rule's limits, or "" if it is not global.
func DescribeRegions(r *rules.Rule, count int, roundTrip time.Duration) string {
	return describeRegions(r, count, roundTrip, func(penstock.Limit) string { return "" })
}

// describeRegions adds to each limit what is held of it.
func describeRegions(r *rules.Rule, count int, roundTrip time.Duration, held func(penstock.Limit) string) string {
	switch {
	case r == nil || r.Global == nil || r.Unlimited:
		return ""
	case count == 0:
		return "what each holds depends on their number: --regions"
	}
	text := fmt.Sprintf("%d: ", count)
	for also := r; also != nil; also = also.Also {
		if r.Also != nil {
			text += also.Limit.WithName("").String() + ": "
		}
		text += regions.SizesOf(also.Limit, settingsOf(also.Global), count, roundTrip).String() + held(also.Limit)
		if also.Also != nil {
			text += "; "
		}
	}
	return text
}

// describeRegions is [DescribeRegions] by the settings of the daemon, with what its region holds of a key.
func (s *Server) describeRegions(ctx context.Context, r *rules.Rule, key string) string {
	return describeRegions(r, s.config.Regions, s.config.RoundTrip, func(l penstock.Limit) string {
		switch units, age, err := s.regions.Held(ctx, key, l); {
		case err != nil:
			return ", what this one holds is unknown: " + err.Error()
		case units > 0:
			return fmt.Sprintf(", this one holds %d, its last lot came %v ago", units, age.Round(100*time.Millisecond))
		}
		return ""
	})
}

// checkGlobal returns an error if a rule is global and there is no home, which would multiply its limit by the number of
// regions. It warns of limits that pools do not help.
func (s *Server) checkGlobal(all []*rules.Rule) error {
	for _, r := range all {
		switch {
		case r.Global == nil || r.Unlimited:
			continue
		case s.config.Home == "":
			return rules.Errors{{File: r.File, Line: r.Line, Reason: "global: needs --home, or each region would grant the whole limit"}}
		}
		z := regions.SizesOf(r.Limit, settingsOf(r.Global), s.config.Regions, s.config.RoundTrip)
		s.log.Info("global limit", "rule", r.Name, "region_holds", z.Hold, "home_keeps_free", z.KeepFree)
		if z.Hold == 0 || z.Slow {
			s.log.Warn("requests under a global limit wait for the home region: regions hold less than its rate brings in two round trips",
				"rule", r.Name, "region_holds", z.Hold)
		}
	}
	return nil
}

// onHomeChange logs that the home region went down or came up.
func (s *Server) onHomeChange(c penstock.FallbackChange) {
	if c.Down {
		s.log.Error("home region unavailable, applying on_partition", "err", c.Err)
		return
	}
	s.log.Info("home region available again")
}

// homeState returns for the admin API what [regionsCollector] exports.
func homeState(now regions.Stats) *observe.Home {
	return &observe.Home{
		Down: now.HomeDown, Spent: uint64(now.Spent), Waited: uint64(now.AtHome), Lots: uint64(now.Claims),
		Short: uint64(now.Short), Failed: uint64(now.Failed), Granted: uint64(now.Units), Lost: uint64(now.Lost),
		LotAge: now.Age.Seconds() / float64(max(now.Claims, 1)),
	}
}

// regionsCollector exports what global limits cost.
func regionsCollector(store *regions.Store) prometheus.Collector {
	units := prometheus.NewDesc("penstock_region_units_total", "Units of global limits: taken from home in lots, spent by requests, lost on the way.", []string{"what"}, nil)
	lots := prometheus.NewDesc("penstock_region_lots_total", "Lots that home was asked for, by result: full, short or failed.", []string{"result"}, nil)
	age := prometheus.NewDesc("penstock_region_lot_age_seconds_total", "Age of the units in a pool whenever home was asked for a lot, summed up: divide by lots.", nil, nil)
	atHome := prometheus.NewDesc("penstock_region_home_decisions_total", "Requests under global limits that waited for home to decide.", nil, nil)
	down := prometheus.NewDesc("penstock_region_home_unavailable", "1 while home does not answer.", nil, nil)
	return collector(func(e exporter) {
		now := store.Stats()
		e.counter(units, uint64(now.Units), "taken")
		e.counter(units, uint64(now.Spent), "spent")
		e.counter(units, uint64(now.Lost), "lost")
		e.counter(lots, uint64(now.Claims-now.Short-now.Failed), "full")
		e.counter(lots, uint64(now.Short), "short")
		e.counter(lots, uint64(now.Failed), "failed")
		e <- prometheus.MustNewConstMetric(age, prometheus.CounterValue, now.Age.Seconds())
		e.counter(atHome, uint64(now.AtHome))
		e.flag(down, now.HomeDown)
	})
}
