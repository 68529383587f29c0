package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	rlsext "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
)

// rulesText is the rule file of both services: rules that never deny, but for quota.
const rulesText = `domain: bench
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: route, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: quota, rate_limit: {unit: year, requests_per_unit: 1}}
`

// rlsSubject returns a rate limit service under a load, until the end of the case.
func (b *bench) rlsSubject(server, backend *process, l rlsLoad) *subject {
	client := dialRLS(server.addr, l)
	b.Cleanup(client.close)
	return newSubject(server, backend, func(until time.Time) ([]time.Duration, error) {
		check := newRLSCheck(l)
		latencies, err := client.send(until, callers, check)
		if err == nil {
			err = check.sums(time.Now())
		}
		return latencies, err
	})
}

// An rlsLoad is what a proxy asks of a rate limit service.
type rlsLoad struct {
	descriptors int  // of a request
	denyHalf    bool // whether half of the keys have used up their quota
	constant    bool // whether the service counts nothing
}

var (
	oneDescriptor    = rlsLoad{descriptors: 1}
	threeDescriptors = rlsLoad{descriptors: 3}
	halfDenied       = rlsLoad{descriptors: 3, denyHalf: true}
)

// encodedRequests returns the requests with gRPC's prefix: not compressed, and the length.
func (l rlsLoad) encodedRequests() [][]byte {
	frames := make([][]byte, keyCount)
	for n := range frames {
		message := harness.Must(proto.Marshal(l.request(n)))
		frames[n] = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	}
	return frames
}

// request returns the n-th request.
func (l rlsLoad) request(n int) *rlspb.RateLimitRequest {
	keys := []string{"user", "remote_address", "route"}[:l.descriptors]
	if l.denies(n) {
		keys[l.descriptors-1] = "quota"
	}
	request := &rlspb.RateLimitRequest{Domain: "bench"}
	for _, key := range keys {
		request.Descriptors = append(request.Descriptors, &rlsext.RateLimitDescriptor{
			Entries: []*rlsext.RateLimitDescriptor_Entry{{Key: key, Value: fmt.Sprintf("%012d", n)}},
		})
	}
	return request
}

// denies reports whether the n-th request is denied once it was granted.
func (l rlsLoad) denies(n int) bool { return l.denyHalf && n%2 == 1 }

// wantedCode returns the code of the response to the n-th request.
func (l rlsLoad) wantedCode(n int) rlspb.RateLimitResponse_Code {
	if l.denies(n) {
		return rlspb.RateLimitResponse_OVER_LIMIT
	}
	return rlspb.RateLimitResponse_OK
}

// check returns an error unless a response has a status for each descriptor, and a limit: beside a
// denial by the deny cache, others have none.
func (l rlsLoad) check(a *rlspb.RateLimitResponse) error {
	limited := slices.ContainsFunc(a.GetStatuses(), func(s *rlspb.RateLimitResponse_DescriptorStatus) bool {
		return s.GetCurrentLimit().GetRequestsPerUnit() > 0
	})
	if len(a.GetStatuses()) != l.descriptors || !limited {
		return fmt.Errorf("response %v: want %d limits", a, l.descriptors)
	}
	return nil
}

// An rlsCase compares the gRPC API with something else.
type rlsCase struct {
	title  string
	load   rlsLoad
	dropIn bool // as penstock ratelimit: compatible, with statistics, and rules over xDS
	least  float64
}

// On the memory store it is compared with a server with a constant response.
var memoryCases = []rlsCase{
	{title: "RLS, 1 descriptor, 10,000 keys, 64 callers, memory store", load: oneDescriptor, least: 0.95},
	{title: "the same with 3 descriptors", load: threeDescriptors, least: 0.85},
}

// On Redis it is compared with envoyproxy/ratelimit, with the same rules on the same redis-server.
var redisCases = []rlsCase{
	{title: "RLS on Redis, 1 descriptor", load: oneDescriptor, least: 1.7},
	{title: "RLS on Redis, 3 descriptors", load: threeDescriptors, least: 2.2},
	{title: "penstock ratelimit on Redis, 1 descriptor", load: oneDescriptor, dropIn: true, least: 1.7},
	{title: "penstock ratelimit on Redis, 3 descriptors", load: threeDescriptors, dropIn: true, least: 2.2},
}

// On a Cluster the daemon by itself decides the descriptors of a request as one; as penstock
// ratelimit it counts each by itself, as the rival does.
var clusterCases = []rlsCase{
	{title: "RLS on a Redis Cluster of 3 shards with replicas, 1 descriptor", load: oneDescriptor, least: 2},
	{title: "RLS on a Redis Cluster of 3 shards with replicas, 3 descriptors", load: threeDescriptors, least: 1.5},
	{title: "penstock ratelimit on a Redis Cluster of 3 shards with replicas, 3 descriptors", load: threeDescriptors, dropIn: true, least: 1.5},
}

func (b *bench) rlsOnMemory() {
	rules := b.file("rules/bench.yaml", rulesText)
	for _, c := range memoryCases {
		unlimited := c.load
		unlimited.constant = true
		constant, daemon := b.floor(fmt.Sprint("grpc", c.load.descriptors)), b.serve("grpc", "--rules", rules)
		floor, ours := b.rlsSubject(constant, nil, unlimited), b.rlsSubject(daemon, nil, c.load)
		b.takeTurns(c.title, floor, ours)
		b.FindAtLeast(c.title, ours.To(floor, "rate"), c.least, "a gRPC server with a constant response")
		constant.stop()
		daemon.stop()
	}
}

func (b *bench) rlsOnRedis() {
	redis := b.startRedis()
	rates := b.rlsAgainstRival(redisCases, redis, "envoyproxy/ratelimit, and a p99 that is no higher")
	b.Find(redisCases[1].title, "≥ 0.7× our rate with 1", rates[1] >= 0.7*rates[0], "%.2f×", rates[1]/rates[0])
	const denied = "RLS on Redis, 3 descriptors, one of them denied for half of the keys"
	b.rlsDenied(denied, redis)
	b.rlsDenied(denied+", --deny-cache-age 10s", redis, "--deny-cache-age", "10s", "--redis-prefix", "other")
}

func (b *bench) rlsOnCluster() {
	nodes := redistest.StartCluster(b).Nodes
	b.rlsAgainstRival(clusterCases, redisOf("redis-cluster", nodes...), "envoyproxy/ratelimit on the same Cluster")
}

// rlsAgainstRival compares the gRPC API on Redis with envoyproxy/ratelimit, and returns the daemon's
// rates. A quick run leaves out the rival, which must be downloaded and built.
func (b *bench) rlsAgainstRival(cases []rlsCase, redis *process, than string) (rates []float64) {
	var rival *process
	if !b.Quick {
		rival = b.startRatelimit(redis)
	}
	for _, c := range cases {
		daemon := b.serveRLS(c, redis)
		ours := b.rlsSubject(daemon, redis, c.load)
		target := fmt.Sprintf("≥ %s %s", harness.Times(c.least), than)
		if rival == nil {
			b.takeTurns(c.title, ours)
			b.Find(c.title, target, false, "%.0f a second; without the rival", ours.Median("rate"))
		} else {
			theirs := b.rlsSubject(rival, redis, c.load)
			b.takeTurns(c.title, theirs, ours)
			ratio, p99, theirP99 := ours.To(theirs, "rate"), ours.Median("p99"), theirs.Median("p99")
			b.Find(c.title, target, ratio.Median >= c.least && (redis.isCluster() || p99 <= theirP99),
				"%s, by processor time %s; p99 %.2f ms to %.2f", ratio, theirs.To(ours, "in all"), p99, theirP99)
		}
		rates = append(rates, ours.Median("rate"))
		daemon.stop()
	}
	return rates
}

// serveRLS starts the daemon on Redis, in one of its two roles.
func (b *bench) serveRLS(c rlsCase, redis *process, flags ...string) *process {
	if c.dropIn {
		return b.serveDropIn(redis)
	}
	url := "redis://" + redis.addr
	if redis.isCluster() {
		url = "redis-cluster://" + redis.addr
	}
	rules := b.file("rules/bench.yaml", rulesText)
	return b.serve("grpc", append(flags, "--rules", rules, "--store", url, "--redis-timeout", "10s")...) // the rival's timeout
}

// ratelimitEnv returns the environment of envoyproxy/ratelimit, or of what is in its place, and the
// address of its gRPC API.
func ratelimitEnv(redis *process, more ...string) (addr string, env []string) {
	addr = freeAddr()
	kind := "SINGLE"
	if redis.isCluster() {
		kind = "CLUSTER"
	}
	return addr, append(append(os.Environ(),
		"GRPC_PORT="+portOf(addr), "PORT="+portOf(freeAddr()), "DEBUG_PORT="+portOf(freeAddr()),
		"REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE="+kind, "REDIS_URL="+redis.addr, "USE_STATSD=false", "LOG_LEVEL=ERROR"), more...)
}

// serveDropIn starts the daemon in place of envoyproxy/ratelimit, as Envoy Gateway does: with
// rules over xDS and statistics for Prometheus.
func (b *bench) serveDropIn(redis *process) *process {
	control := harness.Must(xdstest.Start("127.0.0.1:0"))
	b.Cleanup(control.Stop)
	control.Set("1", xdsRules())
	cmd := exec.Command(b.daemon, "ratelimit")
	addr, env := ratelimitEnv(redis, "GRPC_HOST=127.0.0.1", "HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+freeAddr(),
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID=bench", "CONFIG_GRPC_XDS_SERVER_URL="+control.Addr())
	cmd.Env = env
	return b.start("penstock ratelimit", addr, cmd)
}

// xdsRules is rulesText as a message.
func xdsRules() []byte {
	c := xdstest.Config{Name: "bench", Domain: "bench"}
	for _, key := range []string{"user", "remote_address", "route"} {
		c.Descriptors = append(c.Descriptors, xdstest.Descriptor{Key: key, Limit: &xdstest.Limit{Unit: xdstest.Hour, Requests: 1000000000}})
	}
	return c.Encode()
}

// ratelimitVersion is the version of the rival to install.
const ratelimitVersion = "v1.4.1-0.20260122083618-3fb702589d36"

// startRatelimit starts the rival on Redis. On a Cluster it must buffer its writes, and does so
// for the least time that its documentation recommends.
func (b *bench) startRatelimit(redis *process) *process {
	config := b.file("runtime/config/bench.yaml", rulesText)
	dir := filepath.Dir(b.daemon)
	install := exec.Command("go", "install", "github.com/envoyproxy/ratelimit/src/service_cmd@"+ratelimitVersion)
	install.Dir, install.Env = dir, append(os.Environ(), "GOBIN="+dir, "GOFLAGS=-mod=mod")
	harness.Output(install)
	cmd := exec.Command(filepath.Join(dir, "service_cmd"))
	addr, env := ratelimitEnv(redis, "RUNTIME_ROOT="+filepath.Dir(filepath.Dir(config)), "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"DISABLE_STATS=true")
	if cmd.Env = env; redis.isCluster() {
		cmd.Env = append(cmd.Env, "REDIS_PIPELINE_WINDOW=150us")
	}
	return b.start("envoyproxy/ratelimit", addr, cmd)
}

// rlsDenied compares requests one of whose three descriptors is denied for half of the keys
// with those that are all granted.
func (b *bench) rlsDenied(title string, redis *process, flags ...string) {
	daemon := b.serveRLS(rlsCase{}, redis, flags...)
	defer daemon.stop()
	useQuotas(daemon)
	granted, denied := b.rlsSubject(daemon, redis, threeDescriptors), b.rlsSubject(daemon, redis, halfDenied)
	granted.Name, denied.Name = "penstock, all granted", "penstock, half denied"
	b.takeTurns(title, granted, denied)
	ratio := denied.To(granted, "rate")
	b.Find(title, "≥ 1.25× the rate without denials", ratio.Median >= 1.25, "%s, by processor time %s", ratio, granted.To(denied, "in all"))
}

// useQuotas makes each call once, with all quotas unused: those are granted, which is not the
// response that is measured.
func useQuotas(p *process) {
	client := dialRLS(p.addr, halfDenied)
	defer client.close()
	harness.Must(client.send(time.Time{}, keyCount, newRLSCheck(threeDescriptors)))
}

// An rlsCheck checks the responses of one turn: the code of each, and all of those for a sample
// of the keys, whose remaining units must have gone down by one with each call.
type rlsCheck struct {
	load  rlsLoad
	began time.Time
	mu    sync.Mutex
	keys  map[int]*keyUse
}

// A keyUse is what the responses for a key said.
type keyUse struct{ calls, least, most int }

// sampleEvery is how many keys there are to one that is sampled.
const sampleEvery = 101

func newRLSCheck(l rlsLoad) *rlsCheck {
	return &rlsCheck{load: l, began: time.Now(), keys: map[int]*keyUse{}}
}

// response returns an error unless a framed response to the n-th request is the one that is
// wanted. Its first field is the code.
func (c *rlsCheck) response(n int, frame []byte) error {
	const prefix = 5 // not compressed, and the length
	want := c.load.wantedCode(n)
	if len(frame) < prefix+2 || frame[0] != 0 || int(binary.BigEndian.Uint32(frame[1:])) != len(frame)-prefix || frame[prefix] != 1<<3 || frame[prefix+1] != byte(want) {
		return fmt.Errorf("response % x: want %v", frame, want)
	}
	if n%sampleEvery != 0 {
		return nil
	}
	var response rlspb.RateLimitResponse
	if err := proto.Unmarshal(frame[prefix:], &response); err != nil {
		return err
	}
	if err := c.load.check(&response); err != nil {
		return err
	}
	if want == rlspb.RateLimitResponse_OK {
		c.count(n, int(response.GetStatuses()[0].GetLimitRemaining()))
	}
	return nil
}

// count notes what a response said of a key.
func (c *rlsCheck) count(n, remaining int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	use := c.keys[n]
	if use == nil {
		use = &keyUse{least: remaining, most: remaining}
		c.keys[n] = use
	}
	use.calls++
	use.least, use.most = min(use.least, remaining), max(use.most, remaining)
}

// sums returns an error unless each call for a sampled key was charged once. The windows are of
// an hour, so a turn in which one ends cannot tell.
func (c *rlsCheck) sums(now time.Time) error {
	if c.load.constant || !c.began.Truncate(time.Hour).Equal(now.Truncate(time.Hour)) {
		return nil
	}
	for n, use := range c.keys {
		if use.most-use.least != use.calls-1 {
			return fmt.Errorf("key %d: %d calls, and from %d to %d remained", n, use.calls, use.most, use.least)
		}
	}
	return nil
}

// An addition is something that a daemon does beside its decisions. It is compared with the same daemon without it, by
// the processor time that a call costs the daemon and its Redis.
type addition struct {
	title   string
	limit   string // of the only rule, which never denies
	added   string // the same with the addition; default: no different
	flags   []string
	onRedis bool
	most    float64
}

func (b *bench) additions() []addition {
	const limit, also = "limit: 1/24h burst=20000", ", also: 1/12h burst=20000"
	const candidate = ", candidate: 2/24h burst=10000"
	recordings := b.file("recordings/none", "")
	tried := b.file("tried/bench.yaml", "domain: bench\ndescriptors: [{key: user, limit: 2/24h burst=10000}]\n")
	return []addition{
		{title: "a candidate, on Redis", limit: limit, added: limit + candidate, onRedis: true, most: 1.6},
		{title: "a candidate beside two limits, on Redis", limit: limit + also, added: limit + also + candidate, onRedis: true, most: 1.6},
		{title: "--candidate-rules, on Redis", limit: limit, flags: []string{"--candidate-rules", tried}, onRedis: true, most: 1.6},
		{title: "--record", limit: limit, flags: []string{"--record", recordings + ".d"}, most: 1.05},
	}
}

// compareAdditions compares a daemon with each addition with the same daemon without it.
func (b *bench) compareAdditions() {
	for _, a := range b.additions() {
		var redis *process
		var stops []func()
		serve := func(name, limit string, flags ...string) *subject {
			rules := b.file(name+"/bench.yaml", fmt.Sprintf("domain: bench\ndescriptors: [{key: user, %s}]\n", limit))
			if redis != nil {
				flags = append(flags, "--store", "redis://"+redis.addr, "--redis-prefix", name, "--redis-timeout", "10s")
			}
			daemon := b.serve("grpc", append(flags, "--rules", rules)...)
			daemon.name, stops = name, append(stops, daemon.stop)
			return b.rlsSubject(daemon, redis, oneDescriptor)
		}
		if a.onRedis {
			redis = b.startRedis()
		}
		without, with := serve("without", a.limit), serve("with", cmp.Or(a.added, a.limit), a.flags...)
		b.takeTurns(a.title, without, with)
		b.FindAtMost(a.title, with.To(without, "served"), a.most, "the processor time without")
		for _, stop := range stops {
			stop()
		}
	}
}
