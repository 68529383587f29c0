package peertest_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

var requestsPerMode = flag.Int("peer.requests", 5000, "requests of each mode whose answers are compared, at most 5000; a tenth of them with -short")

const requestsPerRuleSet = 25

const (
	shadow     = "SHADOW_MODE=true"
	headers    = "LIMIT_RESPONSE_HEADERS_ENABLED=true"
	localCache = "LOCAL_CACHE_SIZE_IN_BYTES=10000000"
	quota      = "QUOTA_MODE=true"
	stop       = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"
	metadata   = "RESPONSE_DYNAMIC_METADATA=true"
)

// TestAnswersAndCountersAreThoseOfThePeer sends random requests under random rules to both services, and compares
// every field of the answers, and every counter by its name.
func TestAnswersAndCountersAreThoseOfThePeer(t *testing.T) {
	for _, mode := range []struct {
		name  string
		words words
		set   []string
	}{
		{"plain", plainWords, nil},
		{"shadow", plainWords, []string{shadow}},
		{"headers", plainWords, []string{headers}},
		{"local-cache", plainWords, []string{localCache}},
		{"quota", plainWords, []string{quota}},
		{"stop", plainWords, []string{stop}},
		{"stop-local-cache", plainWords, []string{stop, localCache}},
		{"metadata", plainWords, []string{metadata}},
		{"underscores", underscoreWords, nil},
		{"all-but-shadow", underscoreWords, []string{headers, localCache, quota, stop, metadata}},
		{"all", underscoreWords, []string{shadow, headers, localCache, quota, stop, metadata}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			seed, n := fixedseed.Seed(), *requestsPerMode
			if testing.Short() {
				n /= 10
			}
			t.Logf("seed %d", seed)
			r := &random{rand.New(rand.NewPCG(seed, 0)), mode.words, distinctUnits(time.Now()), slices.Contains(mode.set, localCache)}
			c := newComparison(t, r, n/requestsPerRuleSet, mode.set)
			for i := range c.batches {
				c.compareBatch(t, i)
			}
			c.compareCounters(t)
			if c.over == 0 || c.givenUp > len(c.batches)/10 {
				t.Errorf("%d descriptors were over their limit, and %d of %d batches always met the end of a window", c.over, c.givenUp, len(c.batches))
			}
		})
	}
}

// A comparison is of two services with the same rules.
type comparison struct {
	peer, ours *service
	batches    []batch

	asked, over, differ int
	abandoned           map[string]bool // domains whose requests the services got in different windows
	givenUp             int             // batches that are not compared
}

// A batch is a set of rules, and requests.
type batch struct {
	rules    map[string]any
	requests []*pb.RateLimitRequest
	seconds  bool // some limits are of a second, so that both services must get a request within one
}

// attempts is how often a batch is sent until windows end between requests only: each time to another domain with
// the same rules.
const attempts = 5

func domainOf(batch, attempt int) string { return fmt.Sprintf("d%dx%d", batch, attempt) }

func newComparison(t *testing.T, r *random, batches int, mode []string) *comparison {
	t.Helper()
	c := &comparison{abandoned: map[string]bool{}}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range batches {
		c.batches = append(c.batches, r.batch())
		for n := range attempts {
			name := domainOf(i, n)
			if err := os.WriteFile(filepath.Join(dir, "config", name+".yaml"), fileOf(c.batches[i].rules, name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.peer, c.ours = startPeer(t, dir, mode), startDaemon(t, dir, mode)
	return c
}

// compareBatch sends a batch to both services.
func (c *comparison) compareBatch(t *testing.T, i int) {
	t.Helper()
	for n := range attempts {
		domain := domainOf(i, n)
		if c.compareIn(t, domain, &c.batches[i]) {
			return
		}
		c.abandoned[domain] = true
	}
	c.givenUp++
}

// compareIn compares the answers to a batch. It reports false if a request may have been decided in two windows.
func (c *comparison) compareIn(t *testing.T, domain string, b *batch) bool {
	t.Helper()
	var failures []string
	over := 0
	for _, q := range b.requests {
		q.Domain = domain
		b.awaitMiddleOfWindow()
		before := time.Now().Unix()
		want, wantErr := c.peer.ask(t, q)
		trimLimits(want)
		got, gotErr := c.ours.ask(t, q)
		if after := time.Now().Unix(); after/60 != before/60 || after != before && b.seconds {
			return false
		} else if after != before {
			forgetReset(want)
			forgetReset(got)
		}
		for _, st := range want.GetStatuses() {
			if st.GetCode() == pb.RateLimitResponse_OVER_LIMIT {
				over++
			}
		}
		if !proto.Equal(got, want) || (gotErr == nil) != (wantErr == nil) {
			failures = append(failures, fmt.Sprintf("request %s\ngot  %v %v\nwant %v %v", text(q), text(got), gotErr, text(want), wantErr))
		}
	}
	c.asked, c.over, c.differ = c.asked+len(b.requests), c.over+over, c.differ+len(failures)
	if len(failures) > 0 && c.differ-len(failures) < 3 { // the first few
		t.Errorf("rules %s\n%s", fileOf(b.rules, domain), strings.Join(failures[:min(2, len(failures))], "\n"))
	}
	return true
}

// awaitMiddleOfWindow waits where a window is about to end, or both a second and a minute have just begun.
func (b *batch) awaitMiddleOfWindow() {
	isEdge := func(now time.Time) bool {
		return now.Second() > 56 || b.seconds && (now.Second() == 0 || now.Nanosecond() > 700e6 || now.Nanosecond() < 5e6)
	}
	for now := time.Now(); isEdge(now); now = time.Now() {
		<-time.After(now.Truncate(time.Second).Add(time.Second + 6*time.Millisecond).Sub(now))
	}
}

// forgetReset removes what differs if the second has changed.
func forgetReset(answer *pb.RateLimitResponse) {
	for _, st := range answer.GetStatuses() {
		st.DurationUntilReset = nil
	}
	for _, h := range answer.GetResponseHeadersToAdd() {
		if h.GetKey() == "RateLimit-Reset" {
			h.Value = ""
		}
	}
}

func (s *service) ask(t *testing.T, q *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer, err := s.ShouldRateLimit(ctx, q)
	if ctx.Err() != nil {
		t.Fatalf("%v; the log: %s", err, s.log)
	}
	return answer, err
}

// trimLimits removes the second space in the text of a limit, which protobuf writes or not by chance.
func trimLimits(answer *pb.RateLimitResponse) {
	for _, d := range answer.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues() {
		fields := d.GetStructValue().GetFields()
		if limit := fields["limit"]; limit != nil {
			fields["limit"] = structpb.NewStringValue(strings.ReplaceAll(limit.GetStringValue(), "  ", " "))
		}
	}
}

func text(m proto.Message) string { return prototext.MarshalOptions{}.Format(m) }

// compares reports whether a counter is compared: one of a rule, or of all requests.
func (c *comparison) compares(name string) bool {
	if rest, ok := strings.CutPrefix(name, "ratelimit.service.rate_limit."); ok {
		domain, _, _ := strings.Cut(rest, ".")
		return !c.abandoned[domain]
	}
	return strings.HasPrefix(name, "ratelimit_server.") || strings.HasSuffix(name, ".global_shadow_mode") && len(c.abandoned) == 0
}

// compareCounters waits until the counters are equal.
func (c *comparison) compareCounters(t *testing.T) {
	t.Helper()
	var got, want map[string]int
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		got, want = c.ours.statsd.counters(c.compares), c.peer.statsd.counters(c.compares)
		if len(want) > 0 && maps.Equal(got, want) {
			break
		}
	}
	names := maps.Clone(want)
	maps.Copy(names, got)
	differ := 0
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if got[name] == want[name] {
			continue
		}
		if differ++; differ <= 20 {
			t.Errorf("counter %s: got %d, want %d", name, got[name], want[name])
		}
	}
	t.Logf("%d of %d answers and %d of %d counters differ; %d were over their limit, %d batches were repeated",
		c.differ, c.asked, differ, len(names), c.over, len(c.abandoned))
}
