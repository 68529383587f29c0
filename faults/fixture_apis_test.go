package faults

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/client"
)

// The APIs of a daemon, each as a store that takes one unit at a time. A failed call
// is ErrUnavailable: it may or may not have been charged.

// apiLimits are the limit of the rules, which requests that carry a limit use too.
var apiLimits = []penstock.Limit{{Count: burst, Period: 24 * time.Hour}}

const apiRules = `
domain: shop
descriptors:
  - key: user
    limit: "60/24h"
`

// apiTimeout is how long a caller waits for an API. It only detects a daemon that
// hangs: it is longer than a busy machine stalls.
const apiTimeout = time.Minute

// unknownSource is the source of decisions by an API that does not report one.
const unknownSource penstock.Source = 255

// openAPIs returns a store for each API of a daemon.
func openAPIs(t testing.TB, d *daemon) []penstock.Store {
	t.Helper()
	byLimit, err := client.New("http://"+d.addrs["http"], &client.Options{HTTP: &http.Client{
		Timeout: apiTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: callers},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(byLimit.Close)
	resp := &respStore{addr: d.addrs["resp"]}
	t.Cleanup(resp.Close)
	proxy := &http.Client{Timeout: apiTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	t.Cleanup(proxy.CloseIdleConnections)
	return []penstock.Store{
		openGRPC(t, d, apiTimeout),
		prefixedKeys{"http ", byLimit},
		prefixedKeys{"resp ", resp},
		authStore(proxy, d.addrs["http"]),
	}
}

// openGRPC returns a store for the gRPC API, whose calls have a deadline.
func openGRPC(t testing.TB, d *daemon, timeout time.Duration) penstock.Store {
	t.Helper()
	conn, err := grpc.NewClient(d.addrs["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond},
			MinConnectTimeout: apiTimeout, // otherwise a connection has as long as a pause
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpcStore(envoyrls.NewRateLimitServiceClient(conn), timeout)
}

// prefixedKeys is an API whose requests carry their limit, so its keys are its own.
type prefixedKeys struct {
	prefix string
	penstock.Store
}

func (a prefixedKeys) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	r.Key = a.prefix + r.Key
	return a.Store.Take(ctx, r)
}

func unavailable(api string, err error) error {
	return fmt.Errorf("%s: %w: %w", api, penstock.ErrUnavailable, err)
}

// grpcStore sends the requests that Envoy sends.
func grpcStore(c envoyrls.RateLimitServiceClient, timeout time.Duration) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (d penstock.Decision, err error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		answer, err := c.ShouldRateLimit(ctx, &envoyrls.RateLimitRequest{
			Domain: "shop", Descriptors: []*envoyratelimit.RateLimitDescriptor{
				{Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: r.Key}}},
			},
		})
		if err != nil {
			return d, unavailable("grpc", err)
		}
		if len(answer.Statuses) != 1 || answer.Statuses[0].CurrentLimit == nil {
			return d, fmt.Errorf("grpc: no rule was applied: %v", answer)
		}
		d.Remaining, d.Source = int64(answer.Statuses[0].LimitRemaining), unknownSource
		if d.Allowed = answer.OverallCode == envoyrls.RateLimitResponse_OK; d.Allowed {
			d.Granted = 1
			return d, nil
		}
		d.RetryAfter = answer.Statuses[0].DurationUntilReset.AsDuration()
		return d, nil
	})
}

// authStore sends the requests that nginx sends, under the same rule as grpcStore.
func authStore(c *http.Client, addr string) penstock.Store {
	return penstock.StoreFunc(func(_ context.Context, r penstock.Request) (d penstock.Decision, err error) {
		response, err := c.Get("http://" + addr + "/v1/auth?domain=shop&user=" + url.QueryEscape(r.Key))
		if err != nil {
			return d, unavailable("auth", err)
		}
		defer func() { _ = response.Body.Close() }()
		d.Source = unknownSource
		text, err := io.ReadAll(response.Body)
		switch {
		case err != nil:
			return d, unavailable("auth", err)
		case response.StatusCode == http.StatusOK:
			d.Allowed, d.Granted = true, 1
		case response.StatusCode == http.StatusTooManyRequests:
			seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
			d.RetryAfter = time.Duration(seconds) * time.Second
			return d, err
		case response.StatusCode == http.StatusServiceUnavailable:
			return d, unavailable("auth", fmt.Errorf("%s: %s", response.Status, text))
		default:
			return d, fmt.Errorf("auth: %s: %s", response.Status, text)
		}
		return d, nil
	})
}

// A respStore sends CL.THROTTLE as Redis clients do, one call at a time.
type respStore struct {
	addr string
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader
}

func (p *respStore) Take(_ context.Context, r penstock.Request) (penstock.Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, err := p.throttle(r)
	if err != nil {
		p.disconnect()
		return d, unavailable("resp", err)
	}
	return d, nil
}

func (p *respStore) throttle(r penstock.Request) (d penstock.Decision, err error) {
	if p.conn == nil {
		if p.conn, err = net.DialTimeout("tcp", p.addr, apiTimeout); err != nil {
			return d, err
		}
		p.in = bufio.NewReader(p.conn)
	}
	if err := p.conn.SetDeadline(time.Now().Add(apiTimeout)); err != nil {
		return d, err
	}
	count, seconds := r.Limit.Count, int64(r.Limit.Period/time.Second)
	if _, err := fmt.Fprintf(p.conn, "CL.THROTTLE \"%s\" %d %d %d\r\n", r.Key, count-1, count, seconds); err != nil {
		return d, err
	}
	numbers, err := p.read()
	if err != nil {
		return d, err
	}
	d.Limit, d.Remaining, d.Source = numbers[1], numbers[2], unknownSource
	if d.Allowed = numbers[0] == 0; d.Allowed {
		d.Granted = 1
		return d, nil
	}
	d.RetryAfter = time.Duration(numbers[3]) * time.Second
	return d, nil
}

// read reads a reply of five numbers.
func (p *respStore) read() (numbers [5]int64, err error) {
	for i := range 6 {
		line, err := p.in.ReadString('\n')
		if err != nil {
			return numbers, err
		}
		line = strings.TrimSpace(line)
		if i == 0 && line == "*5" {
			continue
		}
		if i == 0 || line[0] != ':' {
			return numbers, fmt.Errorf("unexpected reply %q", line)
		}
		if numbers[i-1], err = strconv.ParseInt(line[1:], 10, 64); err != nil {
			return numbers, err
		}
	}
	return numbers, nil
}

func (p *respStore) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disconnect()
}

func (p *respStore) disconnect() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.conn = nil
}
