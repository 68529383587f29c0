package faults

import (
	"context"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/regions"
	"github.com/penstock-io/penstock/server/client"
)

// Faults of three regions that share limits: each has a Redis, and a link to home that takes time.

const threeRegions = "three regions"

// regionLimits do not refill during a run. A region holds at most regionHold units of a key.
var regionLimits = []penstock.Limit{
	{Algorithm: penstock.TokenBucket, Count: 300, Period: 300 * 24 * time.Hour},
	{Algorithm: penstock.FixedWindow, Count: 300, Period: 24 * time.Hour},
	{Algorithm: penstock.SlidingWindow, Count: 300, Period: 24 * time.Hour},
	{Algorithm: penstock.SlidingLog, Count: 300, Period: 24 * time.Hour},
}

const regionHold = 20

// regionTrips are the round trips to home.
var regionTrips = []time.Duration{time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond}

// A regionRig is the servers of three regions.
type regionRig struct {
	home    *redistest.Server
	regions []*redistest.Server
	toHome  []*redistest.Proxy
}

// newRegionRig starts the servers. The servers of regions may be given.
func (r *run) newRegionRig(home *redistest.Server, servers ...*redistest.Server) *regionRig {
	r.Helper()
	rig := &regionRig{home: home, regions: servers}
	for i := range regionTrips {
		if len(servers) == 0 {
			rig.regions = append(rig.regions, r.redis())
		}
		rig.toHome = append(rig.toHome, redistest.StartProxy(r, home.Addr))
		rig.delay(i)
	}
	return rig
}

// delay gives the link of a region its round trip.
func (rig *regionRig) delay(i int) { rig.toHome[i].Delay(regionTrips[i]) }

// startRegions puts the regions under load, with a process in each.
func (r *run) startRegions(rig *regionRig) *load {
	r.Helper()
	l := &load{run: r, pause: time.Millisecond}
	for i, server := range rig.regions {
		local, home := r.open("redis://"+server.Addr, drainTimeout), r.open("redis://"+rig.toHome[i].Addr, regions.HomeTimeout)
		store, err := regions.New(local, regions.RedisPools(local, drainTimeout), home, &regions.Options{Regions: len(rig.regions), RoundTrip: regionTrips[2]})
		if err != nil {
			r.Fatal(err)
		}
		l.nodes = append(l.nodes, store)
	}
	direct := r.open("redis://"+rig.home.Addr, drainTimeout)
	held := map[string]int64{}
	l.close = func() { held = r.takePools(rig) }
	l.drain = func(q penstock.Request) (penstock.Decision, error) {
		d, err := direct.Take(context.Background(), q)
		d.Granted += held[q.Key]
		return d, err
	}
	r.load, r.goroutines = l, runtime.NumGoroutine()
	l.start()
	return l
}

// loadRegions starts the servers and the load, and waits until that many takes are answered.
func (r *run) loadRegions(answers int) (*regionRig, *load) {
	r.Helper()
	rig := r.newRegionRig(r.redis())
	l := r.startRegions(rig)
	l.awaitAnswers(r.scale(answers))
	return rig, l
}

// takePools empties all pools, when no lot is on its way any more, and returns what they had of each key.
func (r *run) takePools(rig *regionRig) map[string]int64 {
	const script = `local found = {}
		for _, key in ipairs(redis.call('KEYS', '*:pool:*')) do
			if redis.call('HGET', key, 'claim') ~= '' then return 'busy' end
			found[#found + 1] = string.match(key, '[^:]*$') .. ' ' .. redis.call('HGET', key, 'left')
		end
		return table.concat(found, '\n')`
	held := map[string]int64{}
	for _, server := range rig.regions {
		var text string
		for until := time.Now().Add(3 * regions.HomeTimeout); ; time.Sleep(10 * time.Millisecond) {
			if text = redistest.MustCommand(r, server, "EVAL", script, "0"); text != "busy" || time.Now().After(until) {
				break // a claim of a lost lot stays
			}
		}
		for _, line := range strings.Split(text, "\n") {
			if key, left, ok := strings.Cut(line, " "); ok {
				n, _ := strconv.ParseInt(left, 10, 64)
				held[key] += n
			}
		}
	}
	return held
}

// cutRegionOff is F33: the connections of a region to home are lost without notice.
func cutRegionOff(r *run) {
	rig, l := r.loadRegions(1500)
	frozen := rig.toHome[2].Freeze()
	l.awaitMisses(r.scale(50))
	l.awaitAnswers(r.scale(500)) // of the other regions
	rig.toHome[2].Thaw()
	rig.toHome[2].CutAll()
	l.awaitAnswers(r.scale(500))
	r.prove("half-open connections to home", frozen)
}

// cutLots is F34: connections break within the answers of home.
func cutLots(r *run) {
	rig, l := r.loadRegions(500)
	cuts := 0
	for k := range r.scale(10) {
		p := rig.toHome[k%3]
		before := p.Cuts()
		p.CutReplyAfter(k%10, k%2 == 0)
		redistest.WaitFor(r, "an answer of home is cut", func() bool { return p.Cuts() > before })
		cuts++
		l.awaitAnswers(30)
	}
	l.awaitAnswers(r.scale(300))
	r.prove("cut answers of home", cuts)
}

// killHome is F35.
func killHome(r *run) {
	rig, _ := r.loadRegions(1500)
	r.killAndRestart(rig.home)
}

// killRegion is F36: the Redis of a region comes back empty. Home decides meanwhile.
func killRegion(r *run) {
	rig, l := r.loadRegions(1500)
	server := rig.regions[1]
	before := redistest.InfoField(r, server, "run_id")
	server.Kill()
	l.awaitAnswers(r.scale(500))
	r.restart(server)
	l.awaitAnswers(r.scale(500))
	if redistest.InfoField(r, server, "run_id") != before {
		r.prove("servers with a new run id", 1)
	}
}

// rollRegionBack is F36 too: the Redis of a region comes back with the state of an old file.
func rollRegionBack(r *run) {
	rig, l := r.loadRegions(1500)
	server := rig.regions[1]
	redistest.MustCommand(r, server, "SAVE")
	l.awaitAnswers(r.scale(500))
	server.Kill()
	l.awaitAnswers(r.scale(100))
	r.restart(server)
	pools := redistest.MustCommand(r, server, "KEYS", "*:pool:*")
	l.awaitAnswers(r.scale(500))
	r.prove("pools of an older state", len(strings.Fields(pools)))
}

// stepRegionClocks is F38: clocks of regions are hours apart, and step.
func stepRegionClocks(r *run) {
	var servers []*redistest.Server
	var clocks []*clock
	for i := range regionTrips {
		server, c := r.redisWithClock(time.Duration(i-1) * 3 * time.Hour)
		servers, clocks = append(servers, server), append(clocks, c)
	}
	rig := r.newRegionRig(r.redis(), servers...)
	l := r.startRegions(rig)
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 2 * time.Hour} {
		l.awaitAnswers(r.scale(500))
		clocks[1].step(ahead)
	}
	l.awaitAnswers(r.scale(500))
	r.prove("hours between the clocks of regions", (r.clockOffset(servers[1])-r.clockOffset(servers[0]))/3600)
}

const regionRules = `
domain: shop
descriptors:
  - key: user
    limit: "300/24h"
    global: {pool: 20%}
`

// killDaemonsWithLots is F37: daemons are killed after home has charged a lot, and before it is in the pool.
func killDaemonsWithLots(r *run) {
	rig := r.newRegionRig(r.redis())
	path := filepath.Join(r.TempDir(), "rules.yaml")
	writeRules(r, path, regionRules)
	l := &load{run: r, pause: time.Millisecond, close: func() {}}
	var daemons []*daemon
	for i, server := range rig.regions {
		d := serve(r, &daemon{flags: []string{
			"--rules", path, "--store", "redis://" + server.Addr, "--redis-timeout", "10s",
			"--home", "redis://" + rig.toHome[i].Addr, "--regions", "3", "--round-trip", "50ms",
		}})
		daemons, l.nodes = append(daemons, d), append(l.nodes, r.ruleStore(d))
	}
	r.load = l
	l.start()
	held, killed := 0, 0
	for n := range r.scale(2) {
		l.awaitAnswers(r.scale(300))
		i := 1 + n%2
		p := rig.toHome[i]
		before := p.DelayedReplies()
		p.Delay(time.Hour) // holds what home answers
		redistest.WaitFor(r, "home has answered a daemon", func() bool { return p.DelayedReplies() > before })
		held += p.DelayedReplies() - before
		daemons[i].kill()
		killed += daemons[i].killedBySignal()
		rig.delay(i)
		daemons[i].start()
	}
	l.awaitAnswers(r.scale(300))
	r.prove("answers of home that no daemon read", min(held, killed))
}

// ruleStore takes by the rule of a daemon.
func (r *run) ruleStore(d *daemon) penstock.Store {
	r.Helper()
	api, err := client.New("http://"+d.addrs["http"], nil)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(api.Close)
	return penstock.StoreFunc(func(ctx context.Context, q penstock.Request) (penstock.Decision, error) {
		a, err := api.Do(ctx, client.TakeRequest{
			Domain: "shop", Cost: q.Cost, Descriptors: []client.Descriptor{{Entries: []client.Entry{{Key: "user", Value: q.Key}}}},
		})
		return a.Decision, err
	})
}
