package rlqs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
)

// patience bounds waits; tests that pass do not wait as long.
const patience = time.Minute

// A served is a quota service beside the rate limit service, with a connection to both.
type served struct {
	quotas *Service
	api    *rls.Server
	conn   *grpc.ClientConn
}

// serve serves both until the test ends.
func serve(t *testing.T, e *engine.Engine, o *Options) served {
	t.Helper()
	quotas, err := New(e, o)
	if err != nil {
		t.Fatal(err)
	}
	api, err := rls.New(e, &rls.Options{Services: []rls.OtherService{quotas}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	working.Go(func() { quotas.Run(ctx) })
	working.Go(func() { _ = api.Serve(l) })
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(64<<10), // does not grow, so that a client can stop to read
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		grace, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = api.Shutdown(grace)
		stop()
		working.Wait()
	})
	return served{quotas, api, conn}
}

// A quotaClient is a proxy's client, as the protocol describes it: it reports the first
// request of a bucket at once, then all buckets again and again, and applies what it
// receives. Its assignments do not expire, so that a machine that stands still for some
// seconds changes no result; the simulation has those that do.
type quotaClient struct {
	t      *testing.T
	stream quotapb.RateLimitQuotaService_StreamRateLimitQuotasClient
	paths  []string

	mu        sync.Mutex
	buckets   map[string]*envoyBucket
	usage     map[string]*[2]uint64 // allowed and denied since the last report
	last      time.Time
	ended     error
	abandoned int
}

func openClient(t *testing.T, conn *grpc.ClientConn, paths ...string) *quotaClient {
	t.Helper()
	stream, err := quotapb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &quotaClient{t: t, stream: stream, paths: paths, buckets: map[string]*envoyBucket{}, usage: map[string]*[2]uint64{}, last: time.Now()}
	for _, path := range paths {
		c.buckets[path], c.usage[path] = &envoyBucket{forever: true}, &[2]uint64{0, 1} // its behaviour without an assignment is to deny
	}
	go c.receive()
	return c
}

func (c *quotaClient) receive() {
	for {
		m, err := c.stream.Recv()
		c.mu.Lock()
		if err != nil {
			c.ended = err
			c.mu.Unlock()
			return
		}
		for _, a := range m.GetBucketAction() {
			c.buckets[a.GetBucketId().GetBucket()["path"]].apply(time.Now(), a)
			if a.GetAbandonAction() != nil {
				c.abandoned++
			}
		}
		c.mu.Unlock()
	}
}

// report reports all buckets. The domain is in the first report only.
func (c *quotaClient) report(domain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &quotapb.RateLimitQuotaUsageReports{Domain: domain}
	for _, path := range c.paths {
		u := c.usage[path]
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, newReport("", path, u[0], u[1]).GetBucketQuotaUsages()...)
		*u = [2]uint64{}
	}
	_ = c.stream.Send(m) // an error shows on receiving
}

// requests decides some requests of a path, and returns how many are allowed.
func (c *quotaClient) requests(path string, n int) (allowed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		if c.buckets[path].allow(time.Now()) {
			allowed++
			c.usage[path][0]++
		} else {
			c.usage[path][1]++
		}
	}
	return allowed
}

func (c *quotaClient) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// waitFor waits for a condition.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !done() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// shouldRateLimit takes one unit through the rate limit service, and reports whether it was
// granted.
func shouldRateLimit(t *testing.T, conn *grpc.ClientConn, path string) bool {
	t.Helper()
	r, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rlspb.RateLimitRequest{
		Domain: "shop",
		Descriptors: []*commonpb.RateLimitDescriptor{{
			Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "path", Value: path}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetOverallCode() == rlspb.RateLimitResponse_OK
}

var prefixes atomic.Int64

func onBothStores(t *testing.T, test func(t *testing.T, store penstock.Store)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, penstock.NewMemory(nil))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		store, err := redisstore.Open(t.Context(), "unix://"+redis.Socket, &redisstore.Options{
			Prefix: fmt.Sprintf("t%d-", prefixes.Add(1)), Timeout: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		test(t, store)
	})
}

// dayRule does not refill during a test, so the sum of all that is admitted is exact.
const dayRule = "domain: shop\ndescriptors:\n  - {key: path, limit: 200/24h fixed-window}\n"

func TestQuotaAndRateLimitServicesShareALimit(t *testing.T) {
	t.Parallel()
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, dayRule, nil)
		conn := serve(t, e, nil).conn
		if !shouldRateLimit(t, conn, "/a") {
			t.Fatal("the first request is denied")
		}
		proxies := []*quotaClient{openClient(t, conn, "/a", "/b"), openClient(t, conn, "/a")}
		for _, p := range proxies {
			p.report("shop")
		}
		byQuota, byService := int64(0), int64(1)
		exhausted := func() bool {
			got := int64(0)
			for _, p := range proxies {
				got += p.requests("/a", 3)
				p.report("")
			}
			if byQuota += got; byQuota == 0 {
				return false
			}
			granted := shouldRateLimit(t, conn, "/a")
			if granted {
				byService++
			}
			return got == 0 && !granted
		}
		waitFor(t, "the limit is used up", exhausted)
		for _, p := range proxies { // what they still hold
			byQuota += p.requests("/a", 1000)
		}
		if total := byQuota + byService; total > 200 {
			t.Errorf("the quota service admitted %d and the rate limit service %d, with a limit of 200", byQuota, byService)
		}
		waitFor(t, "another bucket has units", func() bool {
			proxies[0].report("")
			return proxies[0].requests("/b", 1) == 1
		})
	})
}

func TestStreamEndsWithStatus(t *testing.T) {
	t.Parallel()
	conn := serve(t, newEngine(t, penstock.NewMemory(nil), dayRule, nil), &Options{MaxStreams: 2}).conn
	bad := openClient(t, conn, "/a")
	bad.report("")
	waitFor(t, "a stream without a domain ends", func() bool { return bad.end() != nil })
	if got := status.Code(bad.end()); got != codes.InvalidArgument {
		t.Errorf("a stream without a domain ends with %v", bad.end())
	}
	good := openClient(t, conn, "/a")
	good.report("shop")
	waitFor(t, "a stream has an assignment", func() bool { return good.requests("/a", 1) == 1 })
	second, third := openClient(t, conn, "/a"), openClient(t, conn, "/a")
	waitFor(t, "a stream too many ends", func() bool { return errors.Join(second.end(), third.end()) != nil })
	for _, c := range []*quotaClient{second, third} {
		if err := c.end(); err != nil && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a stream too many ends with %v", err)
		}
	}
	if good.end() != nil {
		t.Errorf("the other stream ended: %v", good.end())
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	t.Parallel()
	s := serve(t, newEngine(t, penstock.NewMemory(nil), dayRule, nil), nil)
	c := openClient(t, s.conn, "/a")
	c.report("shop")
	waitFor(t, "there is an assignment", func() bool { return c.requests("/a", 1) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.api.Shutdown(ctx); err != nil {
		t.Errorf("the stream kept the server from shutting down: %v", err)
	}
	waitFor(t, "the stream ends", func() bool { return c.end() != nil })
	if status.Code(c.end()) != codes.Unavailable {
		t.Errorf("the stream ends with %v", c.end())
	}
}

func TestServerEndsStreamThatIsNotRead(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64 // of the service's clock
	s := serve(t, newEngine(t, penstock.NewMemory(nil), dayRule, nil), &Options{
		MaxBuckets: 1,
		Now:        func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	})
	stream, err := quotapb.NewRateLimitQuotaServiceClient(s.conn).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the stream is open", func() bool { return s.quotas.Stats().Streams == 1 })
	// Buckets beyond the bound are abandoned, which fills what the connection buffers.
	for i := range 20 {
		m := &quotapb.RateLimitQuotaUsageReports{Domain: "shop"}
		for j := range 40 {
			m.BucketQuotaUsages = append(m.BucketQuotaUsages, newReport("", fmt.Sprintf("/%0500d", i*40+j), 1, 0).GetBucketQuotaUsages()...)
		}
		if err := stream.Send(m); err != nil {
			break // ended already
		}
	}
	waitFor(t, "the server ends the stream", func() bool {
		ahead.Add(int64(time.Second))
		return s.quotas.Stats() == (Stats{Assigned: s.quotas.Stats().Assigned})
	})
}
