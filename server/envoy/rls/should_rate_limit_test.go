package rls_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rls"
)

// takeRequest returns a request of one hit for a user.
func takeRequest(user string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "api", Descriptors: []*common.RateLimitDescriptor{{
		Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: user}},
	}}}
}

// refundRequest returns a request that refunds one hit of a user.
func refundRequest(user string) *pb.RateLimitRequest {
	m := takeRequest(user)
	m.Descriptors[0].IsNegativeHits = true
	return m
}

// wantCode fails the test unless the error has that code.
func wantCode(t testing.TB, err error, code codes.Code) {
	t.Helper()
	if got := status.Code(err); got != code {
		t.Errorf("got %v (%v), want %v", got, err, code)
	}
}

func TestConcurrentCallsAreCountedExactly(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		c := newClient(t, newEngine(t, store, strings.Replace(userRules, "requests_per_unit: 2", "requests_per_unit: 500", 1), nil), nil)
		var allowed atomic.Int64
		var callers sync.WaitGroup
		for range 64 {
			callers.Go(func() {
				for range 20 {
					r, err := c.ShouldRateLimit(t.Context(), takeRequest("ada"))
					if err != nil {
						t.Error(err)
						return
					}
					if r.GetOverallCode() == pb.RateLimitResponse_OK {
						allowed.Add(1)
					}
				}
			})
		}
		callers.Wait()
		if allowed.Load() != 500 {
			t.Errorf("%d of 1280 calls were allowed, want 500", allowed.Load())
		}
	})
}

func TestCallDeadlineReturnsDeadlineExceeded(t *testing.T) {
	c := newClient(t, newEngine(t, newBlockingStore(), userRules, nil), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.ShouldRateLimit(ctx, takeRequest("ada"))
	wantCode(t, err, codes.DeadlineExceeded)
}

func TestCallCancellationReachesStore(t *testing.T) {
	store := newBlockingStore()
	e := newEngine(t, store, userRules, nil)
	c := newClient(t, e, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-store.called
		cancel()
	}()
	_, err := c.ShouldRateLimit(ctx, takeRequest("ada"))
	wantCode(t, err, codes.Canceled)
	waitForErrors(t, e, 1) // the store saw the cancellation
}

// waitForErrors waits until n requests have failed.
func waitForErrors(t *testing.T, e *engine.Engine, n uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var errs uint64
		for _, c := range e.RuleStats() {
			errs += c.Errors.Load()
		}
		if errs == n {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d errors counted, want %d", errs, n)
		case <-tick.C:
		}
	}
}

func TestStoreUnavailableIsAnError(t *testing.T) {
	down := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, errors.Join(errors.New("redis: connection refused"), penstock.ErrUnavailable)
	})
	_, err := newClient(t, newEngine(t, down, userRules, nil), nil).ShouldRateLimit(t.Context(), takeRequest("ada"))
	wantCode(t, err, codes.Unknown)
	if !strings.Contains(status.Convert(err).Message(), "connection refused") {
		t.Errorf("the error lacks the cause: %v", err)
	}
}

// A listenerFrom is a listener whose connections appear to come from an address.
type listenerFrom struct {
	net.Listener
	ip net.IP
}

func (l listenerFrom) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return connFrom{c, l.ip}, err
}

type connFrom struct {
	net.Conn
	ip net.IP
}

func (c connFrom) RemoteAddr() net.Addr { return &net.TCPAddr{IP: c.ip, Port: 7} }

// newClientFrom returns a client of a new server that sees it at another address.
func newClientFrom(t *testing.T, ip string, e *engine.Engine, options ...grpc.DialOption) pb.RateLimitServiceClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, listenerFrom{l, net.ParseIP(ip)}, e, nil)
	return pb.NewRateLimitServiceClient(dial(t, l, options...))
}

// With a token, callers on this machine need it too.
func TestRefundNeedsToken(t *testing.T) {
	for _, ip := range []string{"192.0.2.7", "127.0.0.1", "::1"} {
		c := newClientFrom(t, ip, newEngine(t, newMemory(), userRules, &engine.Options{Token: "secret"}))
		if _, err := c.ShouldRateLimit(t.Context(), takeRequest("ada")); err != nil {
			t.Fatal(err)
		}
		with := func(values ...string) context.Context {
			return metadata.NewOutgoingContext(t.Context(), metadata.MD{"authorization": values})
		}
		for _, ctx := range []context.Context{t.Context(), with("Bearer wrong"), with("Bearer "), with("secre"), with("secret"), with("Basic secret"), with("Bearer wrong", "Bearer secret"), with("Bearer secret", "Bearer wrong")} {
			_, err := c.ShouldRateLimit(ctx, refundRequest("ada"))
			wantCode(t, err, codes.PermissionDenied)
		}
		if _, err := c.ShouldRateLimit(with("bearer secret"), refundRequest("bob")); err != nil {
			t.Errorf("scheme in lower case: %v", err)
		}
		r, err := c.ShouldRateLimit(with("Bearer secret"), refundRequest("ada"))
		if err != nil || r.GetStatuses()[0].GetLimitRemaining() != 2 {
			t.Errorf("from %s with the token: got %v, %v, want 2 remaining", ip, r, err)
		}
	}
}

// A refund that is not permitted fails alone: Envoy lets a request pass whose call fails, so it
// must not keep the others from being decided.
func TestForbiddenRefundFailsAlone(t *testing.T) {
	c := newClientFrom(t, "192.0.2.7", newEngine(t, newMemory(), userRules, nil))
	for _, want := range []pb.RateLimitResponse_Code{pb.RateLimitResponse_OK, pb.RateLimitResponse_OK, pb.RateLimitResponse_OVER_LIMIT} {
		both := takeRequest("ada")
		both.Descriptors = append(both.Descriptors, refundRequest("ada").GetDescriptors()...)
		r, err := c.ShouldRateLimit(t.Context(), both)
		if err != nil {
			t.Fatal(err)
		}
		if r.GetOverallCode() != want || r.GetStatuses()[0].GetCode() != want || r.GetStatuses()[1].GetCode() != pb.RateLimitResponse_UNKNOWN {
			t.Errorf("got %v, want %v and UNKNOWN for the refund", r, want)
		}
	}
}

// Wherever a refund that is not permitted stands among the descriptors, and whatever it would refund, the
// others are decided and charged as if it were not there, and it changes nothing.
func TestForbiddenRefundLeavesOtherLimits(t *testing.T) {
	const otherRules = "\n  - key: path\n    rate_limit: {unit: hour, requests_per_unit: 3}\n"
	own := &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: typev3.RateLimitUnit_HOUR}
	descriptor := func(key string, refunds bool, limit *common.RateLimitDescriptor_RateLimitOverride) *common.RateLimitDescriptor {
		return &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: "x"}}, IsNegativeHits: refunds, Limit: limit}
	}
	for name, refund := range map[string]*common.RateLimitDescriptor{
		"the same key":       descriptor("user", true, nil),
		"another rule":       descriptor("path", true, nil),
		"no rule":            descriptor("nowhere", true, nil),
		"its own limit":      descriptor("user", true, own),
		"a limit of no unit": descriptor("user", true, &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3}),
	} {
		for place := range 3 {
			for _, compat := range []bool{false, true} {
				c := newClientFrom(t, "192.0.2.7", newEngine(t, newMemory(), userRules+otherRules, &engine.Options{CompatEnvoy: compat}))
				for call, want := range []string{"OK", "OK", "OVER_LIMIT", "OVER_LIMIT"} {
					ds := slices.Insert([]*common.RateLimitDescriptor{descriptor("user", false, nil), descriptor("open", false, nil)}, place, refund)
					r, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "api", Descriptors: ds})
					if err != nil {
						t.Fatalf("refund of %s at %d: %v", name, place, err)
					}
					var codes []string
					for _, s := range r.GetStatuses() {
						codes = append(codes, s.GetCode().String())
					}
					if wanted := slices.Insert([]string{want, "OK"}, place, "UNKNOWN"); r.GetOverallCode().String() != want || !slices.Equal(codes, wanted) {
						t.Errorf("refund of %s at %d, envoy %v, call %d: got %v %q, want %s %q", name, place, compat, call, r.GetOverallCode(), codes, want, wanted)
					}
				}
			}
		}
	}
}

// Under all kinds of rules and options, a call with a refund that is not permitted is answered as one without it:
// not even a quota, which denies only together with all others, is one less because of it.
func TestForbiddenRefundChangesNothingElse(t *testing.T) {
	const yaml = `
domain: api
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: two, limit: "3/1h", also: "2/day fixed-window"}
  - {key: tokens, charge: always, limit: "3/1h"}
  - {key: free, rate_limit: {unlimited: true}}
`
	var unmatched atomic.Int64
	count := func(string, []rules.Entry) { unmatched.Add(1) }
	for _, o := range []engine.Options{
		{},
		{CompatEnvoy: true},
		{QuotaMode: true},
		{QuotaMode: true, CompatEnvoy: true},
		{DenyUnmatched: true},
		{Shadow: true},
		{CompatEnvoy: true, StopIncrement: true, OverLimitKeys: 100, CountHits: true, NearLimitRatio: 0.8},
		{OverLimitKeys: 100, CacheDenials: true},
	} {
		o.OnUnmatched = count
		for _, keys := range [][]string{{"user"}, {"user", "open"}, {"open"}, {"user", "path"}, {"quota"}, {"quota", "user"}, {"shadow", "user"}, {"two"}, {"two", "path"}, {"tokens"}, {"free", "user"}} {
			for _, refunded := range []string{"user", "quota", "two", "open"} {
				with := newClientFrom(t, "192.0.2.7", newEngine(t, newMemory(), yaml, &o))
				without := newClientFrom(t, "192.0.2.7", newEngine(t, newMemory(), yaml, &o))
				q := &pb.RateLimitRequest{Domain: "api"}
				for _, key := range keys {
					q.Descriptors = append(q.Descriptors, &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: "x"}}})
				}
				refund := &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: refunded, Value: "x"}}, IsNegativeHits: true}
				for n := range 4 {
					place := n % (len(keys) + 1)
					unmatched.Store(0)
					want, err := without.ShouldRateLimit(t.Context(), q)
					reported := unmatched.Swap(0)
					got, err2 := with.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "api", Descriptors: slices.Insert(slices.Clone(q.GetDescriptors()), place, refund)})
					if err != nil || err2 != nil {
						t.Fatal(err, err2)
					}
					got.Statuses = slices.Delete(got.GetStatuses(), place, place+1)
					if !proto.Equal(got, want) || unmatched.Load() != reported {
						t.Fatalf("QuotaMode %v, CompatEnvoy %v, DenyUnmatched %v, %q and a refund of %s at %d, call %d:\ngot  %v, %d unmatched\nwant %v, %d",
							o.QuotaMode, o.CompatEnvoy, o.DenyUnmatched, keys, refunded, place, n, got, unmatched.Load(), want, reported)
					}
				}
			}
		}
	}
}

// Without a token, only programs on this machine that connect directly may refund. A
// sidecar or another proxy there forwards the calls of remote clients.
func TestRefundWithoutTokenNeedsDirectLocalCaller(t *testing.T) {
	for _, c := range []struct {
		ip, authority string
		header        string // with the value 203.0.113.9
		distrust      bool
		want          codes.Code
	}{
		{ip: "127.0.0.1", want: codes.OK},
		{ip: "::1", want: codes.OK},
		{ip: "127.0.0.1", authority: "localhost:8081", want: codes.OK},
		{ip: "127.0.0.1", header: "x-request-id", want: codes.OK},
		{ip: "192.0.2.7", want: codes.PermissionDenied},
		{ip: "127.0.0.6", want: codes.PermissionDenied},
		{ip: "127.0.0.1", authority: "penstock.mesh.svc.cluster.local", want: codes.PermissionDenied},
		{ip: "127.0.0.1", header: "x-forwarded-for", want: codes.PermissionDenied},
		{ip: "127.0.0.1", header: "x-forwarded-proto", want: codes.PermissionDenied},
		{ip: "127.0.0.1", header: "x-envoy-external-address", want: codes.PermissionDenied},
		{ip: "127.0.0.1", header: "x-real-ip", want: codes.PermissionDenied},
		{ip: "127.0.0.1", header: "forwarded", want: codes.PermissionDenied},
		{ip: "127.0.0.1", header: "via", want: codes.PermissionDenied},
		{ip: "127.0.0.1", distrust: true, want: codes.PermissionDenied},
	} {
		var options []grpc.DialOption
		if c.authority != "" {
			options = append(options, grpc.WithAuthority(c.authority))
		}
		client := newClientFrom(t, c.ip, newEngine(t, newMemory(), userRules, &engine.Options{DistrustLocal: c.distrust}), options...)
		ctx := t.Context()
		if c.header != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, c.header, "203.0.113.9")
		}
		if _, err := client.ShouldRateLimit(ctx, refundRequest("ada")); status.Code(err) != c.want {
			t.Errorf("%+v: got %v", c, err)
		}
		if _, err := client.ShouldRateLimit(ctx, takeRequest("ada")); err != nil {
			t.Errorf("%+v: taking: %v", c, err)
		}
	}
}

func TestUnixSocketIsLocal(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, newEngine(t, newMemory(), userRules, nil), nil)
	if _, err := pb.NewRateLimitServiceClient(dial(t, l)).ShouldRateLimit(t.Context(), refundRequest("ada")); err != nil {
		t.Error(err)
	}
}

func TestObserveLatencyEveryCall(t *testing.T) {
	var observed atomic.Int64
	c := newClient(t, newEngine(t, newMemory(), userRules, nil), &rls.Options{ServiceOptions: rls.ServiceOptions{ObserveLatency: func(_ context.Context, d time.Duration) {
		if d >= 0 {
			observed.Add(1)
		}
	}}})
	for range 3 { // the last one is denied
		if _, err := c.ShouldRateLimit(t.Context(), takeRequest("ada")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{}); err == nil {
		t.Error("a request without a domain succeeded")
	}
	if observed.Load() != 4 {
		t.Errorf("observed %d calls, want 4", observed.Load())
	}
}

// Beside a denial by the deny cache, nothing is known of other limits: a proxy is told none of them.
func TestDenialByDenyCacheHasNoLimitOfOthers(t *testing.T) {
	e := newEngine(t, penstock.WithDenyCache(newMemory(), nil), userRules+"  - {key: path, limit: 60/1h}\n", nil)
	c := newClient(t, e, nil)
	m := takeRequest("ada")
	m.Descriptors = append(m.Descriptors, &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: "path", Value: "/"}}})
	for range 4 {
		r, err := c.ShouldRateLimit(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if other := r.GetStatuses()[1]; r.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT && other.GetLimitRemaining() == 60 {
			t.Errorf("two of 60 were taken, and the answer says %v", other)
		}
	}
	r, err := c.ShouldRateLimit(t.Context(), m)
	if err != nil || r.GetStatuses()[0].GetCurrentLimit() == nil || r.GetStatuses()[1].GetCurrentLimit() != nil {
		t.Errorf("got %v (%v), want the limit of the denial alone", r, err)
	}
}
