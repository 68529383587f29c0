package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	rlsext "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// rulesText is the rule file of both services: one rule that never denies.
const rulesText = `domain: bench
descriptors:
  - key: user
    rate_limit:
      unit: hour
      requests_per_unit: 1000000000
`

// connections is the number of connections of a proxy with a few threads.
const connections = 4

// newRLSContender returns a contender that calls a rate limit service.
func newRLSContender(p *process) (*contender, func(), error) {
	var clients []rlspb.RateLimitServiceClient
	var conns []*grpc.ClientConn
	done := func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for range connections {
		c, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			done()
			return nil, nil, err
		}
		conns, clients = append(conns, c), append(clients, rlspb.NewRateLimitServiceClient(c))
	}
	requests := rlsRequests()
	send := func(caller, n int) error {
		response, err := clients[caller%connections].ShouldRateLimit(context.Background(), requests[n%len(requests)])
		if err != nil {
			return err
		}
		return checkRLS(response)
	}
	return &contender{server: p, send: send}, done, nil
}

func rlsRequests() []*rlspb.RateLimitRequest {
	requests := make([]*rlspb.RateLimitRequest, keyCount)
	for i := range requests {
		requests[i] = &rlspb.RateLimitRequest{
			Domain: "bench",
			Descriptors: []*rlsext.RateLimitDescriptor{{
				Entries: []*rlsext.RateLimitDescriptor_Entry{{Key: "user", Value: fmt.Sprintf("%012d", i)}},
			}},
		}
	}
	return requests
}

// checkRLS returns an error unless the response is a grant under a limit.
func checkRLS(a *rlspb.RateLimitResponse) error {
	if a.GetOverallCode() != rlspb.RateLimitResponse_OK || len(a.GetStatuses()) != 1 ||
		a.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 0 {
		return fmt.Errorf("response %v: want a grant under a limit", a)
	}
	return nil
}

// rls compares the gRPC API on the memory store with a server with a constant response.
func (b *bench) rls() error {
	b.logf("the gRPC API on the memory store: %d pairs of %s", b.pairs, b.turn)
	rules, err := b.file("rules/bench.yaml", rulesText)
	if err != nil {
		return err
	}
	constant, err := floor("grpc")
	if err != nil {
		return err
	}
	defer constant.stop()
	daemon, err := b.serve("grpc", "--rules", rules)
	if err != nil {
		return err
	}
	defer daemon.stop()
	c, d, err := b.compareRLS("RLS, 1 descriptor, 10,000 keys, 64 callers, memory store", constant, daemon, nil)
	if err != nil {
		return err
	}
	ratio := d.ratioTo(c)
	b.findings.Add(d.title, "≥ 0.95× a gRPC server with a constant response", ratio.Median >= 0.95,
		"%s", measure.TimesWithSpread(ratio))
	return nil
}

func (b *bench) compareRLS(title string, first, second, backend *process) (c, d *contender, err error) {
	c, doneFirst, err := newRLSContender(first)
	if err != nil {
		return nil, nil, err
	}
	defer doneFirst()
	d, doneSecond, err := newRLSContender(second)
	if err != nil {
		return nil, nil, err
	}
	defer doneSecond()
	c.backend, d.backend = backend, backend
	return c, d, b.takeTurns(title, c, d)
}

// rlsOnRedis compares the gRPC API on Redis with envoyproxy/ratelimit, with the same
// rules on the same redis-server. A quick run leaves out the rival, which must be
// downloaded and built.
func (b *bench) rlsOnRedis() error {
	b.logf("the gRPC API on Redis: %d pairs of %s", b.pairs, b.turn)
	rules, err := b.file("rules/bench.yaml", rulesText)
	if err != nil {
		return err
	}
	redis, err := startRedis()
	if err != nil {
		return err
	}
	defer redis.stop()
	daemon, err := b.serve("grpc", "--rules", rules,
		"--store", "redis://"+redis.addr, "--redis-timeout", "10s") // the rival's timeout
	if err != nil {
		return err
	}
	defer daemon.stop()
	if b.quick {
		return b.measureRLSOnRedis(daemon, redis)
	}
	rival, err := b.startRatelimit(redis)
	if err != nil {
		return err
	}
	defer rival.stop()
	c, d, err := b.compareRLS(onRedis, rival, daemon, redis)
	if err != nil {
		return err
	}
	ratio, ours, theirs := d.ratioTo(c), measure.SpreadOf(d.p99).Median, measure.SpreadOf(c.p99).Median
	b.findings.Add(d.title, onRedisTarget, ratio.Median >= 1.7 && ours < theirs,
		"%s; p99 %.2f ms to %.2f", measure.TimesWithSpread(ratio), ours, theirs)
	return nil
}

const (
	onRedis       = "the same on Redis"
	onRedisTarget = "≥ 1.7× envoyproxy/ratelimit, and a lower p99"
)

// measureRLSOnRedis measures the daemon without the rival.
func (b *bench) measureRLSOnRedis(daemon, redis *process) error {
	d, done, err := newRLSContender(daemon)
	if err != nil {
		return err
	}
	defer done()
	d.backend = redis
	if err := b.takeTurns(onRedis, d); err != nil {
		return err
	}
	b.findings.Add(d.title, onRedisTarget, false, "%.0f a second; without the rival", measure.SpreadOf(d.rates).Median)
	return nil
}

// ratelimitVersion is the version of the rival to install.
const ratelimitVersion = "v1.4.1-0.20260122083618-3fb702589d36"

func (b *bench) startRatelimit(redis *process) (*process, error) {
	config, err := b.file("runtime/config/bench.yaml", rulesText)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(b.daemon)
	install := exec.Command("go", "install", "github.com/envoyproxy/ratelimit/src/service_cmd@"+ratelimitVersion)
	install.Dir, install.Env = dir, append(os.Environ(), "GOBIN="+dir, "GOFLAGS=-mod=mod")
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building envoyproxy/ratelimit: %w\n%s", err, out)
	}
	var addrs [3]string
	for i := range addrs {
		if addrs[i], err = freeAddr(); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(filepath.Join(dir, "service_cmd"))
	cmd.Env = append(os.Environ(),
		"GRPC_PORT="+portOf(addrs[0]), "PORT="+portOf(addrs[1]), "DEBUG_PORT="+portOf(addrs[2]),
		"RUNTIME_ROOT="+filepath.Dir(filepath.Dir(config)), "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE=SINGLE", "REDIS_URL="+redis.addr,
		"USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=ERROR")
	return start("envoyproxy/ratelimit", addrs[0], cmd)
}
