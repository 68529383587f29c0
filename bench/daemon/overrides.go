package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/client"
)

const (
	overridingDaemons = 3
	importSize        = 10_000 // the most in one import
	overrideCallers   = 8      // that each daemon answers meanwhile
)

const overrideRules = "domain: edge\ndescriptors:\n  - {key: user, limit: 1000000000/1s}\n"

// An overridden is a daemon whose overrides are changed. Its address is that of the HTTP API.
type overridden struct {
	*process
	admin  string
	client *client.Client
}

// overrides measures how long it takes until three daemons under load decide by a change,
// and until all overrides are in a Redis that was killed and has come back without them.
func (b *bench) overrides() {
	count, changes := b.Size(100_000, 1000), b.Size(30, 3)
	redis := redistest.StartForTest(b, redistest.Options{})
	daemons := b.serveOverridden(redis)
	b.Logf("overrides: %d of them on %d daemons, %d changes", count, len(daemons), changes)
	daemons[0].importOverrides(count - changes)
	stop := loadAll(daemons)
	defer func() { _ = stop() }()
	slowest := change(daemons, changes)
	harness.Check(stop())
	b.Find("an override is in force on 3 daemons under load, of 100,000", "≤ 1 s after its answer, each of them",
		slowest <= time.Second, "the slowest of %d after %.2f s", changes, slowest.Seconds())

	redis.Kill()
	harness.Check(redis.Restart())
	restarted := time.Now()
	redistest.WaitFor(b, "all overrides are in Redis", func() bool {
		n, err := strconv.Atoi(harness.Must(redis.Command("HLEN", "p:overrides")))
		return err == nil && n >= count
	})
	b.Find("Redis is killed and restarts empty", "the daemons write all overrides again", true, "%d after %.1f s", count, time.Since(restarted).Seconds())
}

// serveOverridden starts the daemons.
func (b *bench) serveOverridden(redis *redistest.Server) (all []overridden) {
	timeout := harness.Scale(b.Run, "1s", "10s") // a test is not about a Redis that is late
	rules := b.file("overridden/bench.yaml", overrideRules)
	for range overridingDaemons {
		admin := freeAddr()
		p := b.serve("http", "--admin", admin, "--rules", rules, "--store", "redis://"+redis.Addr, "--redis-timeout", timeout)
		p.awaitListener(admin) // it is opened after that of the HTTP API
		all = append(all, overridden{p, admin, harness.Must(client.New("http://"+p.addr, nil))})
	}
	return all
}

// importOverrides bans users of whom no request comes.
func (d overridden) importOverrides(count int) {
	for first := 0; first < count; first += importSize {
		var table strings.Builder
		table.WriteString("rule,key,limit\n")
		for i := first; i < min(first+importSize, count); i++ {
			fmt.Fprintf(&table, "edge/user,other-%d,ban\n", i)
		}
		d.put("text/csv", table.String())
	}
}

// put sets overrides.
func (d overridden) put(contentType, body string) {
	request := harness.Must(http.NewRequest(http.MethodPut, "http://"+d.admin+"/v1/overrides?reason=benchmark", strings.NewReader(body)))
	request.Header.Set("Content-Type", contentType)
	response := harness.Must(http.DefaultClient.Do(request))
	defer func() { _ = response.Body.Close() }()
	if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		harness.Check(fmt.Errorf("PUT /v1/overrides: %s: %s", response.Status, text))
	}
}

// takes reports whether a user's request is granted.
func (d overridden) takes(user string) (bool, error) {
	entries := []client.Entry{{Key: "user", Value: user}}
	response, err := d.client.Do(context.Background(), client.TakeRequest{Domain: "edge", Cost: 1, Descriptors: []client.Descriptor{{Entries: entries}}})
	return response.Allowed, err
}

// change bans one user after the other, on one daemon after the other, and returns the
// longest time from an answer to a denial by the last daemon.
func change(daemons []overridden, changes int) (slowest time.Duration) {
	for i := range changes {
		user := fmt.Sprintf("banned-%d", i)
		if allowed, err := daemons[0].takes(user); !allowed || err != nil {
			harness.Check(fmt.Errorf("%s before the ban: allowed is %t, %w", user, allowed, err))
		}
		daemons[i%len(daemons)].put("application/json", fmt.Sprintf(`{"rule": "edge/user", "key": %q, "limit": "ban", "reason": "benchmark"}`, user))
		slowest = max(slowest, awaitDenials(daemons, user))
	}
	return slowest
}

// loadAll sends requests to all daemons until it is stopped, and returns the errors of callers.
func loadAll(daemons []overridden) (stop func() error) {
	return harness.Background(func(stopped func() bool) error {
		_, err := harness.Concurrently(len(daemons)*overrideCallers, func(caller int) error {
			for n := 0; !stopped(); n++ {
				allowed, err := daemons[caller%len(daemons)].takes(fmt.Sprintf("user-%d-%d", caller, n%1000))
				if err != nil || !allowed {
					return fmt.Errorf("a request of the load: allowed is %t, %w", allowed, err)
				}
			}
			return nil
		})
		return err
	})
}

// awaitDenials returns how long it takes until all daemons deny a user.
func awaitDenials(daemons []overridden, user string) time.Duration {
	start := time.Now()
	for _, d := range daemons {
		for harness.Must(d.takes(user)) {
			if time.Since(start) > startTimeout {
				harness.Check(fmt.Errorf("%s is not banned at %s", user, d.addr))
			}
		}
	}
	return time.Since(start)
}
