package xds_test

import (
	"context"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/envoy/xds"
	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
	"google.golang.org/grpc"
)

// patience bounds each wait for what must happen; it only matters when a test fails.
const patience = 2 * time.Minute

// A receiver is a client that runs, and what it put in use.
type receiver struct {
	used chan *rules.Set
	errs chan error
}

func startServer(t *testing.T, addr string, o ...grpc.ServerOption) *xdstest.Server {
	t.Helper()
	s, err := xdstest.Start(addr, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func newClient(t *testing.T, c *xds.Config, o *xds.Options) *xds.Client {
	t.Helper()
	if o == nil {
		o = &xds.Options{}
	}
	o.MinBackoff, o.MaxBackoff = 5*time.Millisecond, 50*time.Millisecond
	client, err := xds.New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// run runs a client until the test ends.
func run(t *testing.T, client *xds.Client) *receiver {
	t.Helper()
	r := &receiver{used: make(chan *rules.Set, 100), errs: make(chan error, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Run(ctx, r.use)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

func (r *receiver) use(set *rules.Set, err error) error {
	if err != nil {
		r.errs <- err
		return err
	}
	r.used <- set
	return nil
}

// next returns the rules that are put in use next.
func (r *receiver) next(t *testing.T) *rules.Set {
	t.Helper()
	select {
	case set := <-r.used:
		return set
	case err := <-r.errs:
		t.Fatalf("rules were rejected: %v", err)
	case <-time.After(patience):
		t.Fatal("no rules arrived")
	}
	return nil
}

func (r *receiver) nextError(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.errs:
		return err
	case <-r.used:
		t.Fatal("rules were accepted")
	case <-time.After(patience):
		t.Fatal("no rules arrived")
	}
	return nil
}

// awaitRequest returns the next request to a server of which something is true.
func awaitRequest(t *testing.T, s *xdstest.Server, is func(*discovery.DiscoveryRequest) bool) *discovery.DiscoveryRequest {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case r := <-s.Requests:
			if is(r) {
				return r
			}
		case <-deadline:
			t.Fatal("no such request")
		}
	}
}

func isAck(version string) func(*discovery.DiscoveryRequest) bool {
	return func(r *discovery.DiscoveryRequest) bool {
		return r.GetErrorDetail() == nil && r.GetResponseNonce() != "" && r.GetVersionInfo() == version
	}
}

func isNack(r *discovery.DiscoveryRequest) bool { return r.GetErrorDetail() != nil }

func config(s *xdstest.Server) *xds.Config {
	return &xds.Config{Addr: s.Addr(), Node: "envoy-ratelimit", Metadata: map[string]string{"zone": "eu"}}
}

// domain returns a resource with one limit a minute.
func domain(name string, requests uint64) []byte {
	c := xdstest.Config{Name: name, Domain: name, Descriptors: []xdstest.Descriptor{
		{Key: "user", Limit: &xdstest.Limit{Unit: xdstest.Minute, Requests: requests}},
	}}
	return c.Encode()
}

func count(t *testing.T, set *rules.Set, name string) int64 {
	t.Helper()
	d := set.Domain(name)
	if d == nil {
		t.Fatalf("no domain %s in %q", name, set.DomainNames())
	}
	for _, r := range set.Rules() {
		if r.Name == name+"/user" {
			return r.Limit.Count
		}
	}
	t.Fatalf("no rule of %s", name)
	return 0
}
