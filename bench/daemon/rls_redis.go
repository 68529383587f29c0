package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
)

// A redisCase compares the gRPC API on Redis with envoyproxy/ratelimit.
type redisCase struct {
	title   string
	load    rlsLoad
	dropIn  bool // as penstock ratelimit: compatible, with statistics, and rules over xDS
	atLeast float64
}

func (c redisCase) target() string {
	return fmt.Sprintf("≥ %.1f× envoyproxy/ratelimit, and a p99 that is no higher", c.atLeast)
}

var redisCases = []redisCase{
	{title: "RLS on Redis, 1 descriptor", load: oneDescriptor, atLeast: 1.7},
	{title: "RLS on Redis, 3 descriptors", load: threeDescriptors, atLeast: 2.2},
	{title: "penstock ratelimit on Redis, 1 descriptor", load: oneDescriptor, dropIn: true, atLeast: 1.7},
	{title: "penstock ratelimit on Redis, 3 descriptors", load: threeDescriptors, dropIn: true, atLeast: 2.2},
}

// rlsOnRedis compares the gRPC API on Redis with envoyproxy/ratelimit, with the same
// rules on the same redis-server. A quick run leaves out the rival, which must be
// downloaded and built.
func (b *bench) rlsOnRedis() error {
	redis, err := startRedis()
	if err != nil {
		return err
	}
	defer redis.stop()
	var rival *process
	if !b.quick {
		if rival, err = b.startRatelimit(redis); err != nil {
			return err
		}
		defer rival.stop()
	}
	rates := make([]float64, len(redisCases))
	for i, c := range redisCases {
		if rates[i], err = b.runRedisCase(c, rival, redis); err != nil {
			return fmt.Errorf("%s: %w", c.title, err)
		}
	}
	b.findings.Add(redisCases[1].title, "≥ 0.7× our rate with 1", rates[1] >= 0.7*rates[0], "%.2f×", rates[1]/rates[0])
	const denied = "RLS on Redis, 3 descriptors, one of them denied for half of the keys"
	if err := b.rlsDenied(denied, redis); err != nil {
		return err
	}
	return b.rlsDenied(denied+", --deny-cache-age 10s", redis, "--deny-cache-age", "10s", "--redis-prefix", "other")
}

// runRedisCase returns the rate of the daemon.
func (b *bench) runRedisCase(c redisCase, rival, redis *process) (float64, error) {
	b.logf("%s: %d pairs of %s", c.title, b.pairs, b.turn)
	daemon, done, err := b.serveRLS(c, redis)
	if err != nil {
		return 0, err
	}
	defer done()
	if rival == nil {
		return b.measureRLS(c, daemon, redis)
	}
	theirs, ours, err := b.compareRLS(c.title, c.load, rival, daemon, redis)
	if err != nil {
		return 0, err
	}
	ratio, p99, rivals := ours.ratioTo(theirs), measure.SpreadOf(ours.p99).Median, measure.SpreadOf(theirs.p99).Median
	b.findings.Add(c.title, c.target(), ratio.Median >= c.atLeast && p99 <= rivals,
		"%s, by processor time %s; p99 %.2f ms to %.2f",
		measure.TimesWithSpread(ratio), measure.TimesWithSpread(ours.cheaperThan(theirs)), p99, rivals)
	return measure.SpreadOf(ours.rates).Median, nil
}

// compareRLS measures two services on the same Redis in turns.
func (b *bench) compareRLS(title string, l rlsLoad, first, second, backend *process) (c, d *contender, err error) {
	c, doneFirst, err := newRLSContender(first, l)
	if err != nil {
		return nil, nil, err
	}
	defer doneFirst()
	d, doneSecond, err := newRLSContender(second, l)
	if err != nil {
		return nil, nil, err
	}
	defer doneSecond()
	c.backend, d.backend = backend, backend
	return c, d, b.takeTurns(title, c, d)
}

// measureRLS measures the daemon without the rival.
func (b *bench) measureRLS(c redisCase, daemon, redis *process) (float64, error) {
	ours, done, err := newRLSContender(daemon, c.load)
	if err != nil {
		return 0, err
	}
	defer done()
	ours.backend = redis
	if err := b.takeTurns(c.title, ours); err != nil {
		return 0, err
	}
	rate := measure.SpreadOf(ours.rates).Median
	b.findings.Add(c.title, c.target(), false, "%.0f a second; without the rival", rate)
	return rate, nil
}

// serveRLS starts the daemon on Redis, in one of its two roles.
func (b *bench) serveRLS(c redisCase, redis *process, flags ...string) (daemon *process, done func(), err error) {
	if c.dropIn {
		return b.serveDropIn(redis)
	}
	rules, err := b.file("rules/bench.yaml", rulesText)
	if err != nil {
		return nil, nil, err
	}
	flags = append(flags, "--rules", rules, "--store", redis.url(), "--redis-timeout", "10s") // the rival's timeout
	daemon, err = b.serve("grpc", flags...)
	if err != nil {
		return nil, nil, err
	}
	return daemon, daemon.stop, nil
}

// serveDropIn starts the daemon in place of envoyproxy/ratelimit, as Envoy Gateway does: with
// rules over xDS and statistics for Prometheus.
func (b *bench) serveDropIn(redis *process) (daemon *process, done func(), err error) {
	control, err := xdstest.Start("127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	control.Set("1", xdsRules())
	var addrs [4]string
	for i := range addrs {
		if addrs[i], err = freeAddr(); err != nil {
			control.Stop()
			return nil, nil, err
		}
	}
	cmd := exec.Command(b.daemon, "ratelimit")
	cmd.Env = append(os.Environ(), "GRPC_HOST=127.0.0.1", "HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+portOf(addrs[0]), "PORT="+portOf(addrs[1]), "DEBUG_PORT="+portOf(addrs[2]),
		"REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE="+redis.kind(), "REDIS_URL="+redis.addr, "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+addrs[3],
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID=bench", "CONFIG_GRPC_XDS_SERVER_URL="+control.Addr(),
		"LOG_LEVEL=ERROR")
	daemon, err = b.startServer("penstock ratelimit", addrs[0], cmd)
	if err != nil {
		control.Stop()
		return nil, nil, err
	}
	return daemon, func() { daemon.stop(); control.Stop() }, nil
}

// xdsRules is rulesText as a message.
func xdsRules() []byte {
	c := xdstest.Config{Name: "bench", Domain: "bench"}
	for _, key := range []string{"user", "remote_address", "route"} {
		c.Descriptors = append(c.Descriptors, xdstest.Descriptor{Key: key, Limit: &xdstest.Limit{Unit: xdstest.Hour, Requests: 1000000000}})
	}
	return c.Encode()
}

// rlsDenied compares requests one of whose three descriptors is denied for half of the keys
// with those that are all granted.
func (b *bench) rlsDenied(title string, redis *process, flags ...string) error {
	b.logf("%s: %d pairs of %s", title, b.pairs, b.turn)
	daemon, done, err := b.serveRLS(redisCase{}, redis, flags...)
	if err != nil {
		return err
	}
	defer done()
	if err := useQuotas(daemon); err != nil {
		return err
	}
	granted, doneGranted, err := newRLSContender(daemon, threeDescriptors)
	if err != nil {
		return err
	}
	defer doneGranted()
	denied, doneDenied, err := newRLSContender(daemon, halfDenied)
	if err != nil {
		return err
	}
	defer doneDenied()
	granted.backend, denied.backend = redis, redis
	granted.name, denied.name = "penstock, all granted", "penstock, half denied"
	if err := b.takeTurns(title, granted, denied); err != nil {
		return err
	}
	ratio := denied.ratioTo(granted)
	b.findings.Add(title, "≥ 1.25× the rate without denials", ratio.Median >= 1.25, "%s, by processor time %s",
		measure.TimesWithSpread(ratio), measure.TimesWithSpread(denied.cheaperThan(granted)))
	return nil
}

// useQuotas makes each call once, with all quotas unused: those are granted, which is not the
// response that is measured.
func useQuotas(p *process) error {
	client, err := dialRLS(p.addr, halfDenied)
	if err != nil {
		return err
	}
	defer client.close()
	return client.sendEach(newRLSCheck(threeDescriptors))
}
