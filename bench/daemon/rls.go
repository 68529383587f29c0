package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	rlsext "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// rulesText is the rule file of both services: rules that never deny, but for quota.
const rulesText = `domain: bench
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: route, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: quota, rate_limit: {unit: year, requests_per_unit: 1}}
`

// newRLSContender returns a contender that calls a rate limit service.
func newRLSContender(p *process, l rlsLoad) (*contender, func(), error) {
	client, err := dialRLS(p.addr, l)
	if err != nil {
		return nil, nil, err
	}
	load := func(until time.Time) ([]time.Duration, error) {
		check := newRLSCheck(l)
		latencies, err := client.sendUntil(until, check)
		if err == nil {
			err = check.sums(time.Now())
		}
		return latencies, err
	}
	return &contender{server: p, load: load}, client.close, nil
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
func (l rlsLoad) encodedRequests() ([][]byte, error) {
	frames := make([][]byte, keyCount)
	for n := range frames {
		message, err := proto.Marshal(l.request(n))
		if err != nil {
			return nil, err
		}
		frames[n] = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	}
	return frames, nil
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

// check returns an error unless a response has a status under a limit for each descriptor.
func (l rlsLoad) check(a *rlspb.RateLimitResponse) error {
	if len(a.GetStatuses()) != l.descriptors || a.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 0 {
		return fmt.Errorf("response %v: want %d limits", a, l.descriptors)
	}
	return nil
}

// rls compares the gRPC API on the memory store with a server with a constant response.
func (b *bench) rls() error {
	if err := b.rlsOnMemory("RLS, 1 descriptor, 10,000 keys, 64 callers, memory store", oneDescriptor, 0.95); err != nil {
		return err
	}
	return b.rlsOnMemory("the same with 3 descriptors", threeDescriptors, 0.85)
}

func (b *bench) rlsOnMemory(title string, l rlsLoad, atLeast float64) error {
	b.logf("%s: %d pairs of %s", title, b.pairs, b.turn)
	rules, err := b.file("rules/bench.yaml", rulesText)
	if err != nil {
		return err
	}
	constant, err := b.floor(fmt.Sprint("grpc", l.descriptors))
	if err != nil {
		return err
	}
	defer constant.stop()
	daemon, err := b.serve("grpc", "--rules", rules)
	if err != nil {
		return err
	}
	defer daemon.stop()
	unlimited := l
	unlimited.constant = true
	c, doneFloor, err := newRLSContender(constant, unlimited)
	if err != nil {
		return err
	}
	defer doneFloor()
	d, done, err := newRLSContender(daemon, l)
	if err != nil {
		return err
	}
	defer done()
	if err := b.takeTurns(title, c, d); err != nil {
		return err
	}
	ratio := d.ratioTo(c)
	b.findings.Add(d.title, fmt.Sprintf("≥ %.2f× a gRPC server with a constant response", atLeast), ratio.Median >= atLeast,
		"%s", measure.TimesWithSpread(ratio))
	return nil
}

// ratelimitVersion is the version of the rival to install.
const ratelimitVersion = "v1.4.1-0.20260122083618-3fb702589d36"

// startRatelimit starts the rival on Redis. On a Cluster it must buffer its writes, and does so
// for the least time that its documentation recommends.
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
		"REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE="+redis.kind(), "REDIS_URL="+redis.addr,
		"USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=ERROR")
	if len(redis.pids) > 0 {
		cmd.Env = append(cmd.Env, "REDIS_PIPELINE_WINDOW=150us")
	}
	return b.startServer("envoyproxy/ratelimit", addrs[0], cmd)
}
