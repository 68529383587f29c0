package server_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/client"
	"github.com/penstock-io/penstock/server/observe"
)

// globalRules is a file with a limit that holds over all regions, and one that each region has for itself.
func globalRules(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	const text = "domain: api\ndescriptors:\n" +
		"  - {key: tenant, limit: 600/1h, global: {pool: 20%}}\n" +
		"  - {key: user, limit: 5/1h}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// takes makes requests for one key and returns how many were allowed.
func (d *daemon) takes(n int, key, value string) (allowed int) {
	d.t.Helper()
	// The client waits for longer than the daemon may wait for its store and for home.
	api, err := client.New("http://"+d.addr("http"), &client.Options{HTTP: &http.Client{Timeout: testTimeout, Transport: &http.Transport{}}})
	if err != nil {
		d.t.Fatal(err)
	}
	defer api.Close()
	for range n {
		a, err := api.Do(context.Background(), client.TakeRequest{
			Domain: "api", Cost: 1, Descriptors: []client.Descriptor{{Entries: []client.Entry{{Key: key, Value: value}}}},
		})
		if err != nil {
			d.t.Fatal(err)
		}
		if a.Allowed {
			allowed++
		}
	}
	return allowed
}

// Two regions with a Redis each grant together what one would, with home on Redis and with a daemon as home.
func TestRegionsShareALimit(t *testing.T) {
	for _, home := range []string{"redis", "daemon"} {
		t.Run(home, func(t *testing.T) {
			eu, us := redistest.StartForTest(t, redistest.Options{}), redistest.StartForTest(t, redistest.Options{})
			url := "redis://" + redis.Addr
			prefix := rand.Text()
			if home == "daemon" {
				url = "http://" + start(t, map[string]string{"store": "redis://" + redis.Addr, "redis-prefix": prefix, "redis-timeout": "5s"}).addr("http")
			}
			region := func(server *redistest.Server) *daemon {
				return start(t, map[string]string{
					"rules": globalRules(t), "store": "redis://" + server.Addr, "redis-prefix": prefix, "redis-timeout": "5s",
					"home": url, "regions": "2", "home-timeout": "10s",
				})
			}
			first, second, began := region(eu), region(us), time.Now()
			allowed := first.takes(400, "tenant", "a") + second.takes(400, "tenant", "a")
			most := 601 + int(time.Since(began)/(6*time.Second)) // one unit refills in six seconds
			if allowed > most || allowed < 420 {                 // the first region may hold 60
				t.Errorf("two regions granted %d of 600, want at most %d", allowed, most)
			}
			if each := first.takes(7, "user", "u") + second.takes(7, "user", "u"); each != 10 {
				t.Errorf("a limit of each region: granted %d, want 5 in each", each)
			}
			for _, name := range []string{`penstock_region_units_total{what="spent"}`, `penstock_region_lots_total{result="full"}`, "penstock_region_lot_age_seconds_total"} {
				if n := first.metric(name); n == "" || n == "0" {
					t.Errorf("%s is %q", name, n)
				}
			}
			h := observed[observe.Live](t, first, "/v1/live?scope=all").Store.Home
			if h == nil || h.Down || fmt.Sprint(h.Spent) != first.metric(`penstock_region_units_total{what="spent"}`) || h.Lots == 0 || h.Granted < h.Spent || h.LotAge <= 0 {
				t.Errorf("/v1/live shows %+v", h)
			}
			first.takes(1, "tenant", "b")
			const sizes = "regions  2: each holds up to 60 units in advance, home keeps 120 free"
			for tenant, held := range map[string]string{"a": "", "b": ", this one holds 7, its last lot came "} {
				if x := observed[adminapi.Explanation](t, first, "/v1/explain?domain=api&tenant="+tenant); !strings.Contains(x.Text, sizes+held) {
					t.Errorf("/v1/explain shows of tenant %s\n%s", tenant, x.Text)
				}
			}
			if first.metric("penstock_region_home_unavailable") != "0" || !strings.Contains(first.log.String(), "region_holds=60 home_keeps_free=120") {
				t.Errorf("the log is\n%s", first.log)
			}
		})
	}
}

// Hits under compat: envoy are counted over all regions, and so is a candidate of a global rule.
func TestRegionsShareHitsAndCandidates(t *testing.T) {
	eu, us := redistest.StartForTest(t, redistest.Options{}), redistest.StartForTest(t, redistest.Options{})
	for _, c := range []struct {
		text   string
		metric string // of both regions
		want   int    // at most 100 and at least
	}{
		{"compat: envoy\ndescriptors: [{key: tenant, rate_limit: {unit: year, requests_per_unit: 100}, global: {pool: 20%}}]", "", 80},
		{
			"descriptors: [{key: tenant, limit: 900/1d fixed-window, candidate: 100/1d fixed-window, global: {pool: 20%}}]",
			`penstock_candidate_requests_total{candidate="allowed",limit="allowed",rule="api/tenant"}`, 80,
		},
	} {
		file, prefix := filepath.Join(t.TempDir(), "rules.yaml"), rand.Text()
		if err := os.WriteFile(file, []byte("domain: api\n"+c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		counts := [2]int{}
		daemons := [2]*daemon{}
		for i, server := range []*redistest.Server{eu, us} {
			daemons[i] = start(t, map[string]string{
				"rules": file, "store": "redis://" + server.Addr, "redis-prefix": prefix, "redis-timeout": "5s",
				"home": "redis://" + redis.Addr, "regions": "2", "home-timeout": "10s",
			})
		}
		for range 15 {
			for i, d := range daemons {
				counts[i] += d.takes(10, "tenant", "a")
			}
		}
		if c.metric != "" {
			for i, d := range daemons {
				counts[i], _ = strconv.Atoi(d.metric(c.metric))
			}
		}
		if sum := counts[0] + counts[1]; sum > 100 || sum < c.want || min(counts[0], counts[1]) < 20 {
			t.Errorf("%s: the regions allow %d, want 100 together", c.text, counts)
		}
	}
}

func TestRegionsNeedAHome(t *testing.T) {
	for want, flags := range map[string]map[string]string{
		"--home: requires --regions":                 {"home": "redis://localhost"},
		"--regions: requires --home":                 {"regions": "3"},
		`--home: scheme "ftp": want https://`:        {"home": "ftp://x", "regions": "3"},
		"global: needs --home, or each region would": {"rules": globalRules(t)},
		"--home: needs a Redis as --store":           {"home": "http://localhost:1", "regions": "2", "store": "sqlite:" + filepath.Join(t.TempDir(), "db")},
	} {
		c, err := server.LoadConfig(withFreePorts(flags), nil)
		if err == nil {
			_, err = server.New(t.Context(), c, nil)
		}
		if err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v: got %v, want %q", flags, err, want)
		}
	}
}

func withFreePorts(flags map[string]string) map[string]string {
	all := map[string]string{"grpc": "", "http": "127.0.0.1:0", "resp": "", "admin": ""}
	for name, value := range flags {
		all[name] = value
	}
	return all
}
