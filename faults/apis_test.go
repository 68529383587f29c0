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

// A daemon's doors, each as a store that takes one unit at a time. What fails on
// the way is ErrUnavailable: nobody knows whether it was charged.

// doorLimits are what the rules say, and what those bring who bring their limit.
var doorLimits = []penstock.Limit{{Count: burst, Period: 24 * time.Hour}}

const doorRules = `
domain: shop
descriptors:
  - key: user
    limit: "60/24h"
`

// doorPatience is how long callers wait at a door: long enough for a machine that
// stands still for a while, so that only a daemon that hangs is blamed.
const doorPatience = time.Minute

// unsaid is who decided where the door does not say it.
const unsaid penstock.Source = 255

// openDoors returns how to ask at each door of a daemon.
func openDoors(t testing.TB, d *daemon) []penstock.Store {
	t.Helper()
	conn, err := grpc.NewClient(d.doors["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	byLimit, err := client.New("http://"+d.doors["http"], &client.Options{HTTP: &http.Client{
		Timeout: doorPatience, Transport: &http.Transport{MaxIdleConnsPerHost: members},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(byLimit.Close)
	resp := &respDoor{addr: d.doors["resp"]}
	t.Cleanup(resp.hangUp)
	proxy := &http.Client{Timeout: doorPatience, Transport: &http.Transport{MaxIdleConnsPerHost: members}}
	t.Cleanup(proxy.CloseIdleConnections)
	return []penstock.Store{
		envoyDoor(envoyrls.NewRateLimitServiceClient(conn)),
		apart{"http ", byLimit},
		apart{"resp ", resp},
		authDoor(proxy, d.doors["http"]),
	}
}

// An apart is a door with keys of its own, because it does not name the rule.
type apart struct {
	prefix string
	penstock.Store
}

func (a apart) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	r.Key = a.prefix + r.Key
	return a.Store.Take(ctx, r)
}

func unavailable(door string, err error) error {
	return fmt.Errorf("%s: %w: %w", door, penstock.ErrUnavailable, err)
}

// envoyDoor asks as Envoy does.
func envoyDoor(c envoyrls.RateLimitServiceClient) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (d penstock.Decision, err error) {
		ctx, cancel := context.WithTimeout(ctx, doorPatience)
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
		d.Remaining, d.Source = int64(answer.Statuses[0].LimitRemaining), unsaid
		if d.Allowed = answer.OverallCode == envoyrls.RateLimitResponse_OK; d.Allowed {
			d.Granted = 1
			return d, nil
		}
		d.RetryAfter = answer.Statuses[0].DurationUntilReset.AsDuration()
		return d, nil
	})
}

// authDoor asks as nginx does, by the rule that Envoy asks by.
func authDoor(c *http.Client, addr string) penstock.Store {
	return penstock.StoreFunc(func(_ context.Context, r penstock.Request) (d penstock.Decision, err error) {
		response, err := c.Get("http://" + addr + "/v1/auth?domain=shop&user=" + url.QueryEscape(r.Key))
		if err != nil {
			return d, unavailable("auth", err)
		}
		defer func() { _ = response.Body.Close() }()
		d.Source = unsaid
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

// A respDoor asks as Redis clients do, one call at a time.
type respDoor struct {
	addr string
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader
}

func (p *respDoor) Take(_ context.Context, r penstock.Request) (penstock.Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, err := p.throttle(r)
	if err != nil {
		p.close()
		return d, unavailable("resp", err)
	}
	return d, nil
}

func (p *respDoor) throttle(r penstock.Request) (d penstock.Decision, err error) {
	if p.conn == nil {
		if p.conn, err = net.DialTimeout("tcp", p.addr, doorPatience); err != nil {
			return d, err
		}
		p.in = bufio.NewReader(p.conn)
	}
	if err := p.conn.SetDeadline(time.Now().Add(doorPatience)); err != nil {
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
	d.Limit, d.Remaining, d.Source = numbers[1], numbers[2], unsaid
	if d.Allowed = numbers[0] == 0; d.Allowed {
		d.Granted = 1
		return d, nil
	}
	d.RetryAfter = time.Duration(numbers[3]) * time.Second
	return d, nil
}

// read reads an answer of five numbers.
func (p *respDoor) read() (numbers [5]int64, err error) {
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
			return numbers, fmt.Errorf("unexpected answer %q", line)
		}
		if numbers[i-1], err = strconv.ParseInt(line[1:], 10, 64); err != nil {
			return numbers, err
		}
	}
	return numbers, nil
}

func (p *respDoor) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.close()
}

func (p *respDoor) close() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.conn = nil
}
