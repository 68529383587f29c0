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

// rulesText is read by both services: one rule, and never a denial.
const rulesText = `domain: bench
descriptors:
  - key: user
    rate_limit:
      unit: hour
      requests_per_unit: 1000000000
`

// connections is how many a proxy of a few threads would hold.
const connections = 4

// askRLS makes a contender of a rate limit service.
func askRLS(p *process) (*contender, func(), error) {
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
	ask := func(caller, n int) error {
		answer, err := clients[caller%connections].ShouldRateLimit(context.Background(), requests[n%len(requests)])
		if err != nil {
			return err
		}
		return checkRLS(answer)
	}
	return &contender{server: p, ask: ask}, done, nil
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

// checkRLS returns an error unless the answer is a grant under a limit.
func checkRLS(a *rlspb.RateLimitResponse) error {
	if a.GetOverallCode() != rlspb.RateLimitResponse_OK || len(a.GetStatuses()) != 1 ||
		a.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 0 {
		return fmt.Errorf("answer %v: want a grant under a limit", a)
	}
	return nil
}

// rls measures Envoy's door on the embedded store beside a server that answers a
// constant.
func (b *bench) rls() error {
	b.say("Envoy's door on the embedded store: %d pairs of %s", b.pairs, b.turn)
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
	c, d, err := b.raceRLS("RLS, 1 descriptor, 10,000 keys, 64 callers, embedded store", constant, daemon, nil)
	if err != nil {
		return err
	}
	ratio := d.against(c)
	b.findings.Add(d.title, "≥ 0.95× a gRPC server that answers a constant", ratio.Median >= 0.95,
		"%s", measure.TimesWithSpread(ratio))
	return nil
}

func (b *bench) raceRLS(title string, first, second, behind *process) (c, d *contender, err error) {
	c, doneFirst, err := askRLS(first)
	if err != nil {
		return nil, nil, err
	}
	defer doneFirst()
	d, doneSecond, err := askRLS(second)
	if err != nil {
		return nil, nil, err
	}
	defer doneSecond()
	c.behind, d.behind = behind, behind
	return c, d, b.takeTurns(title, c, d)
}

// rlsOnRedis measures Envoy's door on Redis beside envoyproxy/ratelimit, by the
// same rules on the same redis-server. A quick run leaves the rival out, which has
// to be fetched and built.
func (b *bench) rlsOnRedis() error {
	b.say("Envoy's door on Redis: %d pairs of %s", b.pairs, b.turn)
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
		"--store", "redis://"+redis.addr, "--redis-timeout", "10s") // as long as the rival waits
	if err != nil {
		return err
	}
	defer daemon.stop()
	if b.quick {
		return b.pressRLSOnRedis(daemon, redis)
	}
	rival, err := b.startRatelimit(redis)
	if err != nil {
		return err
	}
	defer rival.stop()
	c, d, err := b.raceRLS(onRedis, rival, daemon, redis)
	if err != nil {
		return err
	}
	ratio, ours, theirs := d.against(c), measure.SpreadOf(d.p99).Median, measure.SpreadOf(c.p99).Median
	b.findings.Add(d.title, onRedisTarget, ratio.Median >= 1.7 && ours < theirs,
		"%s; p99 %.2f ms to %.2f", measure.TimesWithSpread(ratio), ours, theirs)
	return nil
}

const (
	onRedis       = "the same on Redis"
	onRedisTarget = "≥ 1.7× envoyproxy/ratelimit, and a lower p99"
)

// pressRLSOnRedis presses the daemon alone.
func (b *bench) pressRLSOnRedis(daemon, redis *process) error {
	d, done, err := askRLS(daemon)
	if err != nil {
		return err
	}
	defer done()
	d.behind = redis
	if err := b.takeTurns(onRedis, d); err != nil {
		return err
	}
	b.findings.Add(d.title, onRedisTarget, false, "%.0f a second; the rival is left out", measure.SpreadOf(d.rates).Median)
	return nil
}

// ratelimitVersion is the rival's, which is built where it is not there yet.
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
