package server_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/rulelimit"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/overrides/redishash"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// libraryRules has a rule of each kind. Periods are so long that no time of a test matters.
const libraryRules = `domain: shop
descriptors:
  - {key: user, limit: 40/365d burst=40}
  - {key: user, value: root, unlimited: true}
  - {key: user, value: "test*", shadow_mode: true, limit: 5/365d fixed-window}
  - {key: address, limit: 60/365d sliding-window}
  - {key: plan, quota_mode: true, limit: 20/365d rolling-window}
  - {key: plan, value: gold, quota_mode: true, limit: 30/365d}
  - key: path
    value: /login
    limit: 50/20d sliding-log
    descriptors:
      - {key: address, limit: 7/365d burst=7, keep_free: 2}
  - {key: report, id: request, limit: 3/1d concurrent}
  - {key: model, limit: 100/365d burst=100, settle: true}
  - {key: bytes, limit: 100/365d burst=100, charge: always}
`

const libraryCompat = `domain: envoy
compat: envoy
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 30}}
  - {key: address, rate_limit: {unit: year, requests_per_unit: 50}}
`

// drawn returns a random request.
func drawn(r *rand.Rand, permits bool) penstock.RuleRequest {
	q := penstock.RuleRequest{Domain: []string{"shop", "shop", "shop", "envoy", "none"}[r.IntN(5)]}
	values := map[string][]string{
		"user": {"1", "2", "root", "tester"}, "address": {"a", "b"}, "plan": {"gold", "tin"}, "path": {"/login", "/else"},
		"report": {"day"}, "model": {"m"}, "bytes": {"x"},
	}
	keys := []string{"user", "address", "plan", "path", "model", "bytes"}
	if permits && q.Domain == "shop" {
		keys = append(keys, "report")
	}
	for _, i := range r.Perm(len(keys))[:1+r.IntN(3)] {
		key := keys[i]
		d := penstock.Descriptor{Cost: 1 + r.Int64N(3)}
		d.Entries = []penstock.Entry{{Key: key, Value: values[key][r.IntN(len(values[key]))]}}
		switch {
		case key == "report":
			d.Cost = 1 - 2*r.Int64N(2)
			d.Entries = append(d.Entries, penstock.Entry{Key: "request", Value: fmt.Sprint(r.IntN(5))})
		case key == "path" && r.IntN(2) == 0:
			d.Entries = append(d.Entries, penstock.Entry{Key: "address", Value: "a"})
		case permits && key != "bytes" && r.IntN(6) == 0:
			d.Cost = -r.Int64N(3) // a peek, or a refund
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

// told is what both say of a decision that does not depend on the moment.
type told struct {
	Allowed   bool
	Rule      string
	Limit     int64
	Remaining int64
	Granted   int64
	Decisions []told
}

func fromLibrary(a rulelimit.Answer) told {
	c := of(a.Allowed, a.Rule, a.Rule != "", a.Decision)
	for _, p := range a.Parts {
		c.Decisions = append(c.Decisions, of(p.Decision.Allowed, p.Rule, p.Limited, p.Decision))
	}
	return c
}

func of(allowed bool, rule string, limited bool, d penstock.Decision) told {
	c := told{Allowed: allowed, Rule: rule}
	if limited {
		c.Limit, c.Remaining, c.Granted = d.Limit, d.Remaining, d.Granted
	}
	return c
}

func openLibrary(t *testing.T) (lim *rulelimit.Limiter, path string) {
	t.Helper()
	path = t.TempDir()
	for name, text := range map[string]string{"shop.yaml": libraryRules, "envoy.yaml": libraryCompat} {
		if err := os.WriteFile(filepath.Join(path, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lim, err := rulelimit.Open(t.Context(), path, penstock.NewMemory(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lim.Close() })
	return lim, path
}

// The daemon and the library answer the same requests by the same rules alike.
func TestLibraryDecidesAsHTTP(t *testing.T) {
	t.Parallel()
	lim, path := openLibrary(t)
	d := start(t, map[string]string{"rules": path, "audit-log": filepath.Join(t.TempDir(), "audit")})
	r := rand.New(rand.NewPCG(1, 2))
	denied, differ := 0, 0
	for i := range 600 {
		q := drawn(r, true)
		status, body := post(t, d.addr("http"), httpBody(q))
		answer, err := lim.Take(t.Context(), q)
		if err != nil || status != 200 && status != 429 {
			if err == nil || status < 400 {
				t.Fatalf("request %d, %+v: HTTP answers %d %s, the library %v", i, q, status, body, err)
			}
			continue
		}
		var got told
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Decisions) == 0 {
			got.Decisions = []told{{got.Allowed, got.Rule, got.Limit, got.Remaining, got.Granted, nil}}
		}
		if !answer.Allowed {
			denied++
		}
		if want := fromLibrary(answer); !reflect.DeepEqual(got, want) {
			if differ++; differ < 5 {
				t.Errorf("request %d, %+v:\nHTTP    %+v\nlibrary %+v", i, q, got, want)
			}
		}
	}
	if denied < 50 || denied > 550 {
		t.Errorf("%d of 600 requests denied: they show little", denied)
	}
}

func httpBody(q penstock.RuleRequest) string {
	type entry struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type descriptor struct {
		Entries []entry `json:"entries"`
		Cost    int64   `json:"cost"`
	}
	var body struct {
		Domain      string       `json:"domain"`
		Descriptors []descriptor `json:"descriptors"`
	}
	body.Domain = q.Domain
	for _, d := range q.Descriptors {
		one := descriptor{Cost: d.Cost}
		for _, e := range d.Entries {
			one.Entries = append(one.Entries, entry(e))
		}
		body.Descriptors = append(body.Descriptors, one)
	}
	text, _ := json.Marshal(body)
	return string(text)
}

// So does Envoy's API.
func TestLibraryDecidesAsGRPC(t *testing.T) {
	t.Parallel()
	lim, path := openLibrary(t)
	d := start(t, map[string]string{"rules": path})
	conn, err := grpc.NewClient(d.addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client, r := pb.NewRateLimitServiceClient(conn), rand.New(rand.NewPCG(3, 4))
	for i := range 600 {
		q := drawn(r, false)
		ask := &pb.RateLimitRequest{Domain: q.Domain, HitsAddend: uint32(q.Descriptors[0].Cost)}
		for j := range q.Descriptors {
			q.Descriptors[j].Cost = q.Descriptors[0].Cost // one for all
			one := &ratelimit.RateLimitDescriptor{}
			for _, e := range q.Descriptors[j].Entries {
				one.Entries = append(one.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
			}
			ask.Descriptors = append(ask.Descriptors, one)
		}
		got, err := client.ShouldRateLimit(t.Context(), ask)
		answer, failed := lim.Take(t.Context(), q)
		if (err == nil) != (failed == nil) {
			t.Fatalf("request %d, %+v: gRPC answers %v, the library %v", i, q, err, failed)
		}
		if err != nil {
			continue
		}
		if (got.GetOverallCode() == pb.RateLimitResponse_OK) != answer.Allowed {
			t.Fatalf("request %d, %+v: gRPC answers %v, the library %+v", i, q, got, answer)
		}
		for j, s := range got.GetStatuses() {
			part := answer.Parts[j]
			ok := s.GetCode() == pb.RateLimitResponse_OK
			counts := ok && part.Limited && !part.Shadow // beside a denial Envoy is told that nothing remains
			if ok != part.Decision.Allowed || counts && int64(s.GetLimitRemaining()) != part.Decision.Remaining {
				t.Fatalf("request %d, %+v, descriptor %d: gRPC answers %v, the library %+v", i, q, j, s, part)
			}
		}
	}
}

// On one Redis a program and a daemon share what keys have used, and which are banned.
func TestLibrarySharesRedisWithDaemon(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte("domain: shop\ndescriptors: [{key: user, limit: 5/1h burst=5}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := start(t, map[string]string{"rules": path, "store": "redis://" + redis.Addr, "redis-prefix": t.Name(), "redis-timeout": "10s"})
	store, err := redisstore.Open(t.Context(), "redis://"+redis.Addr, &redisstore.Options{Prefix: t.Name(), Timeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	shared, err := overrides.Open(&overrides.Options{Shared: redishash.New(store, nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = shared.Close() }()
	lim, err := rulelimit.Open(t.Context(), path, store, &rulelimit.Options{Overrides: shared})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lim.Close() }()
	allow := func(user string) rulelimit.Answer {
		a, err := lim.Allow(t.Context(), "shop", rulelimit.Entries("user", user))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if status, body := post(t, d.addr("http"), spendUser); status != 200 {
		t.Fatalf("got %d %s", status, body)
	}
	if a := allow("42"); a.Allowed {
		t.Errorf("after the daemon took all units: got %+v, want a denial", a)
	}
	ban, err := http.NewRequest(http.MethodPut, "http://"+d.addr("admin")+"/v1/overrides",
		strings.NewReader(`{"rule":"shop/user","key":"user=7","limit":"ban","for":"1h","reason":"abuse"}`))
	if err != nil {
		t.Fatal(err)
	}
	ban.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(ban)
	if err != nil || answer.StatusCode >= 300 {
		t.Fatalf("ban: got %v, %v", answer, err)
	}
	_ = answer.Body.Close()
	d.await("the ban in the program", func() bool { return !allow("7").Allowed })
}
