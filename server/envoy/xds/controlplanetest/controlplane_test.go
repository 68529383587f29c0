package controlplanetest_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
)

const (
	domain = "default/eg/http"
	route  = "httproute/default/shop/rule/0/match/0/*"
)

// policy returns rules in the form of Envoy Gateway: a descriptor for the route, and in it one
// for each rule, by header values, by distinct values of a header, or by address.
func policy(perUser uint32) *config.RateLimitConfig {
	limit := func(n uint32) *config.RateLimitPolicy { // a day may end within a test, and this version has no name for a year
		return &config.RateLimitPolicy{Unit: xdstest.Year, RequestsPerUnit: n}
	}
	return &config.RateLimitConfig{Name: domain, Domain: domain, Descriptors: []*config.RateLimitDescriptor{{
		Key: route, Value: route, Descriptors: []*config.RateLimitDescriptor{
			{Key: "rule-0-match-0", Value: "rule-0-match-0", RateLimit: limit(0)},
			{Key: "rule-1-match-0", RateLimit: limit(perUser)},
			{Key: "masked_remote_address", Value: "10.0.0.0/8", Descriptors: []*config.RateLimitDescriptor{
				{Key: "remote_address", RateLimit: limit(4_000_000_000)},
			}},
		},
	}}}
}

// broken has a descriptor without a unit.
func broken() *config.RateLimitConfig {
	p := policy(1)
	p.Descriptors[0].Descriptors[1].RateLimit.Unit = config.RateLimitUnit_UNKNOWN
	return p
}

const brokenReason = "invalid rate limit unit 'UNKNOWN'"

// ask returns the answer for a descriptor below the route.
func (d *daemon) ask(pairs ...string) (pb.RateLimitResponse_Code, error) {
	descriptor := &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: route, Value: route}}}
	for i := 0; i < len(pairs); i += 2 {
		descriptor.Entries = append(descriptor.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := d.client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: domain, Descriptors: []*common.RateLimitDescriptor{descriptor}})
	return response.GetOverallCode(), err
}

func (d *daemon) want(t *testing.T, code pb.RateLimitResponse_Code, pairs ...string) {
	t.Helper()
	if got, err := d.ask(pairs...); err != nil || got != code {
		t.Fatalf("%q: got %v, %v, want %v; the log:\n%s", pairs, got, err, code, d.log)
	}
}

const (
	ok   = pb.RateLimitResponse_OK
	over = pb.RateLimitResponse_OVER_LIMIT
)

func TestDaemonDecidesByRulesOfControlPlane(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	c.serve("1", policy(1))
	d := startDaemon(t, "CONFIG_GRPC_XDS_SERVER_URL="+c.addr)
	c.awaitAccepted("1")
	d.want(t, over, "rule-0-match-0", "rule-0-match-0")
	d.want(t, ok, "rule-1-match-0", "ada")
	d.want(t, over, "rule-1-match-0", "ada")
	d.want(t, ok, "rule-1-match-0", "bob")
	d.want(t, ok, "masked_remote_address", "10.0.0.0/8", "remote_address", "10.1.2.3")

	c.serve("2", policy(3))
	c.awaitAccepted("2")
	d.want(t, ok, "rule-1-match-0", "ada") // counts stay: the third of three
	d.want(t, over, "rule-1-match-0", "ada")

	c.serve("3", broken())
	await(t, "rejection of version 3", func() bool { return c.answered("", brokenReason) })
	d.want(t, over, "rule-1-match-0", "ada")

	c.serve("4")
	c.awaitAccepted("4")
	d.want(t, ok, "rule-1-match-0", "ada")
	d.want(t, ok, "rule-0-match-0", "rule-0-match-0")
}

// While rules change, are wrong, and while the control plane restarts, each request is decided
// by whole rules: none fails, none that all versions deny is allowed, and none that all allow
// is denied.
func TestDaemonDecidesUnderLoadWhileRulesChange(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	c.serve("1", policy(1))
	d := startDaemon(t, "CONFIG_GRPC_XDS_SERVER_URL="+c.addr)
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for ctx.Err() == nil {
				if code, err := d.ask("rule-0-match-0", "rule-0-match-0"); err != nil || code != over {
					t.Errorf("a limit of 0: got %v, %v", code, err)
					return
				}
				if code, err := d.ask("masked_remote_address", "10.0.0.0/8", "remote_address", "10.1.2.3"); err != nil || code != ok {
					t.Errorf("a limit of billions: got %v, %v", code, err)
					return
				}
			}
		})
	}
	for _, version := range []string{"2", "3", "4"} {
		c.serve(version, policy(uint32(version[0])))
		c.awaitAccepted(version)
	}
	c.serve("5", broken())
	await(t, "rejection of version 5", func() bool { return c.answered("", brokenReason) })
	c.server.Stop()
	for range 2 {
		c = startControlPlane(t, c.addr)
		c.serve("1", policy(7)) // a version again, for other rules
		c.awaitAccepted("1")
		c.serve("2", policy(8))
		c.awaitAccepted("2")
		c.server.Stop()
	}
	cancel()
	load.Wait()
	if strings.Contains(d.log.String(), "panic") {
		t.Error(d.log)
	}
}

// Envoy Gateway starts its service before there are any rules.
func TestDaemonStartsWithoutRulesIfForced(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "") // without a snapshot it does not answer
	for _, healthy := range []bool{true, false} {
		d := startDaemon(t, "CONFIG_GRPC_XDS_SERVER_URL="+c.addr, "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
			"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED="+strconv.FormatBool(!healthy))
		if d.isServing(t) != healthy {
			t.Errorf("without rules: healthy is %v", !healthy)
		}
		if _, err := d.ask("rule-0-match-0", "rule-0-match-0"); err == nil || !strings.Contains(err.Error(), "no rate limit configuration loaded") {
			t.Errorf("without rules: got %v", err)
		}
		c.serve("1", policy(1))
		await(t, "health with rules", func() bool { return d.isServing(t) })
		c.awaitAccepted("1")
		await(t, "rules", func() bool { _, err := d.ask("rule-0-match-0", "rule-0-match-0"); return err == nil })
		d.want(t, over, "rule-0-match-0", "rule-0-match-0")
		d.end()
		c.cache.ClearSnapshot(node)
	}
}

func TestDaemonKeepsRulesOverRestartWhileControlPlaneIsDown(t *testing.T) {
	t.Parallel()
	c := startControlPlane(t, "")
	c.serve("1", policy(1))
	environ := []string{"CONFIG_GRPC_XDS_SERVER_URL=" + c.addr, "PENSTOCK_DATA=" + t.TempDir()}
	d := startDaemon(t, environ...)
	c.awaitAccepted("1")
	d.end()
	c.server.Stop()
	d = startDaemon(t, environ...)
	d.want(t, over, "rule-0-match-0", "rule-0-match-0")
	c = startControlPlane(t, c.addr)
	c.serve("1")
	c.awaitAccepted("1")
	d.want(t, ok, "rule-0-match-0", "rule-0-match-0")
}
