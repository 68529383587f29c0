package server_test

import (
	"bufio"
	"crypto/rand"
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	envoycommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/redistest"
)

// These tests attack a daemon as a client that may not refund would: the daemon has a
// token, and the attackers do not.

const attackedRules = `
domain: shop
descriptors:
  - key: user
    limit: "5/1h"
  - key: login
    limit: "3/1h fixed-window"
  - key: export
    limit: "4/1h sliding-log"
  - key: newcomer
    limit: "10/1s burst=100"
`

func attacked(t *testing.T, store string, settings map[string]string) *daemon {
	all := map[string]string{
		"store": store, "redis-prefix": rand.Text(), "redis-timeout": "10s", "rules": writeRules(t, attackedRules), "token": "secret",
	}
	for name, value := range settings {
		all[name] = value
	}
	return start(t, all)
}

// takeByRule takes one unit by a rule.
func takeByRule(t *testing.T, d *daemon, key, value string) int {
	t.Helper()
	status, _ := post(t, d.addr("http"), fmt.Sprintf(`{"domain":"shop","descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, key, value))
	return status
}

// A client that fills a memory store with made-up keys fills only its share: new keys under
// rules have their own buckets, also after a restart.
func TestAttackOnMemoryLeavesRoomForRules(t *testing.T) {
	settings := map[string]string{"max-keys": "2000", "data": t.TempDir()}
	d := attacked(t, "memory:", settings)
	fill := func(limit string, lists int) (statuses map[int]int) {
		statuses = map[int]int{}
		for i := range lists {
			var requests []string
			for j := range 64 {
				requests = append(requests, fmt.Sprintf(`{"key":"%s-%d-%d","limit":%q}`, limit, i, j, limit))
			}
			status, _ := post(t, d.addr("http"), `{"mode":"each","requests":[`+strings.Join(requests, ",")+`]}`)
			statuses[status]++
		}
		return statuses
	}
	if got := fill("1/366d", 10); got[http.StatusForbidden] != 10 {
		t.Errorf("limits of a year: got %v, want 403 for all", got)
	}
	if got := fill("1/31d", 70); got[http.StatusForbidden] != 0 {
		t.Errorf("limits of 31 days: got %v, want no 403", got)
	}
	fillByOverrides(t, d, 70)
	for round := range 2 {
		for i := range 330 {
			if status := takeByRule(t, d, "newcomer", fmt.Sprintf("%d-%d", round, i)); status != http.StatusOK {
				t.Fatalf("round %d, newcomer %d: got %d, want 200", round, i, status)
			}
		}
		d.end()
		d = attacked(t, "memory:", settings)
	}
}

// fillByOverrides makes up keys by overrides of Envoy, in lists of 64.
func fillByOverrides(t *testing.T, d *daemon, lists int) {
	t.Helper()
	service := envoyrls.NewRateLimitServiceClient(dialGRPC(t, d, nil))
	for i := range lists {
		r := &envoyrls.RateLimitRequest{Domain: "shop"}
		for j := range 64 {
			r.Descriptors = append(r.Descriptors, &envoycommon.RateLimitDescriptor{
				Entries: []*envoycommon.RateLimitDescriptor_Entry{{Key: "made-up", Value: fmt.Sprintf("%d-%d", i, j)}},
				Limit:   &envoycommon.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: envoytype.RateLimitUnit_YEAR},
			})
		}
		if _, err := service.ShouldRateLimit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

// A small request cannot leave a large state in Redis.
func TestAttackOnRedisIsNotAmplified(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{})
	d := attacked(t, "redis://"+server.Addr, nil)
	takeByRule(t, d, "user", "warm-up")
	before := limitKeys(t, server)
	for i := range 100 {
		body := fmt.Sprintf(`{"key":"%d","limit":"10000/24d sliding-log","cost":10000}`, i)
		if status, answer := post(t, d.addr("http"), body); status != http.StatusForbidden || !strings.Contains(answer, "--request-limits-max-key-bytes") {
			t.Fatalf("got %d %s, want 403 about --request-limits-max-key-bytes", status, answer)
		}
	}
	if after := limitKeys(t, server); after != before {
		t.Errorf("keys in Redis:\n%s\nbefore:\n%s", after, before)
	}
}

// limitKeys returns the names of the keys in Redis, but for those of the daemon itself,
// which it writes at times of its own.
func limitKeys(t *testing.T, server *redistest.Server) string {
	t.Helper()
	return redistest.MustCommand(t, server, "EVAL", `
local names = {}
for _, name in ipairs(redis.call('KEYS', '*')) do
  if not string.find(name, 'daemon') and not string.find(name, 'overrides') then names[#names + 1] = name end
end
table.sort(names)
return table.concat(names, '\n')`, "0")
}

// A limit that only Redis rejects fails alone, and not the other commands of its pipeline.
// A list with it is invalid at its place, and nothing of the list is charged.
func TestLimitThatRedisRejectsFailsAlone(t *testing.T) {
	d := attacked(t, "redis://"+redis.Addr, nil)
	const rejected = "100000000000000/1h fixed-window"
	c := dialRESP(t, d)
	defer c.Close()
	command := func(words ...string) rueidis.Completed { return c.B().Arbitrary(words...).Build() }
	for i, r := range c.DoMulti(t.Context(),
		command("PENSTOCK.TAKE", "KEY", "a", "LIMIT", "5/1h"), command("PENSTOCK.TAKE", "KEY", "b", "LIMIT", rejected),
		command("CL.THROTTLE", "c", "4", "5", "3600"), command("PENSTOCK.TAKE", "KEY", "d", "LIMIT", "5/1h"),
	) {
		if err := r.Error(); (err != nil) != (i == 1) || err != nil && !strings.Contains(err.Error(), "LIMIT: Count 100000000000000") {
			t.Errorf("command %d of the pipeline: got %v, want an error of the limit for command 1 alone", i, err)
		}
	}
	status, answer := post(t, d.addr("http"), `{"mode":"each","requests":[{"key":"listed","limit":"5/1h"},{"key":"x","limit":"`+rejected+`"}]}`)
	if status != http.StatusBadRequest || !strings.Contains(answer, `"pointer":"#/requests/1/limit"`) {
		t.Errorf("got %d %s, want 400 at #/requests/1/limit", status, answer)
	}
	if _, answer = post(t, d.addr("http"), `{"key":"listed","limit":"5/1h","cost":0}`); !strings.Contains(answer, `"remaining":5`) {
		t.Errorf("got %s, want nothing charged", answer)
	}
}

var attackRequests = flag.Int("attack.requests", 3_000, "hostile requests of each attack")

// Whatever remote clients send through any API, no rule grants more than its bound, no
// request by a rule fails, and no more is left behind than the stated bounds.
func TestAttackByRandomRequests(t *testing.T) {
	n := *attackRequests / len(attackers)
	t.Run("memory", func(t *testing.T) {
		d := attacked(t, "memory:", map[string]string{"max-keys": "1500"})
		attackUnderLoad(t, d, n)
		if keys := metric(t, d, "penstock_request_limits_keys"); keys > 750 || keys < 375 {
			t.Errorf("limits in requests hold %v keys, want many, and at most half of 1500", keys)
		}
		checkRefusals(t, d, "period", "key_bytes")
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.StartForTest(t, redistest.Options{})
		const bound = 96 << 10
		settings := map[string]string{"redis-prefix": "p", "request-limits-max-redis-bytes": strconv.Itoa(bound / 2)}
		d := attacked(t, "redis://"+server.Addr, settings)
		settings["rules"] = ""
		other := attacked(t, "redis://"+server.Addr, settings) // it does not know the rules
		attackUnderLoad(t, d, n/2, other)
		for _, d := range []*daemon{d, other} {
			if counted := metric(t, d, "penstock_request_limits_redis_bytes"); counted > bound/2 {
				t.Errorf("%v bytes are accounted for, want at most %d", counted, bound/2)
			}
			checkRefusals(t, d, "period", "key_bytes", "redis_bytes")
		}
		const forRules = 8 << 10 // of the victims, and of the daemon itself
		// Accounted for is the most that a key can take, which is several times what most do.
		if left := leftBytes(t, server); left > bound+forRules || left < bound/16 {
			t.Errorf("%d bytes are left in Redis, want many, and at most %d", left, bound)
		}
	})
}

// checkRefusals checks that the attack was refused for each of the reasons.
func checkRefusals(t *testing.T, d *daemon, reasons ...string) {
	t.Helper()
	for _, reason := range reasons {
		if metric(t, d, `penstock_request_limits_refused_total{reason="`+reason+`"}`) == 0 {
			t.Errorf("no request was refused because of %s", reason)
		}
	}
}

// metric returns the value of a metric, by its name and labels.
func metric(t *testing.T, d *daemon, name string) float64 {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.addr("admin")+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer secret")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(read(t, answer), "\n"+name+" ")
	text, _, _ := strings.Cut(rest, "\n")
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}

// leftBytes returns what all keys in Redis use, except those of newcomers.
func leftBytes(t *testing.T, server *redistest.Server) int64 {
	t.Helper()
	const script = `local sum = 0
		for _, key in ipairs(redis.call('KEYS', '*')) do
			if not string.find(key, 'newcomer=', 1, true) then sum = sum + (redis.call('MEMORY', 'USAGE', key) or 0) end
		end
		return sum`
	n, err := strconv.ParseInt(redistest.MustCommand(t, server, "EVAL", script, "0"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// attackUnderLoad runs all attackers, of this daemon and of others on its store, while honest
// clients use the rules. They take turns: a newcomer's key lives for 100 ms, and as fast as they
// can, they would fill the half of a memory store that is theirs, 750 keys, by themselves.
func attackUnderLoad(t *testing.T, d *daemon, n int, others ...*daemon) {
	var attacking, honest sync.WaitGroup
	seed := fixedseed.Seed()
	t.Logf("seed %d", seed)
	for i, target := range append(others, d) {
		for j, attack := range attackers {
			a := &attacker{random: mathrand.New(mathrand.NewPCG(seed, uint64(i*len(attackers)+j)))}
			attacking.Go(func() { attack(t, target, a, n) })
		}
	}
	var done atomic.Bool
	began := time.Now()
	turns := time.NewTicker(time.Millisecond)
	defer turns.Stop()
	grants := make([]int, len(victims))
	for i := range victims {
		honest.Go(func() {
			for more := true; more; more = !done.Load() { // once at least, however late it begins
				<-turns.C
				grants[i] += victims[i].take(t, d)
			}
		})
	}
	attacking.Wait()
	done.Store(true)
	honest.Wait()
	for i, v := range victims {
		if bound := v.burst + v.perHour*time.Since(began).Hours(); float64(grants[i]) > bound || grants[i] == 0 && v.key != "" {
			t.Errorf("%s=%s: %d units were granted, want at most %.2f and at least one", v.key, v.value, grants[i], bound)
		}
	}
}

// A victim is a key under a rule that honest clients take from.
type victim struct {
	key, value     string
	burst, perHour float64
}

// victims are keys that attackers know, in turn under each rule.
var victims = []victim{
	{"user", "1", 5, 5}, {"user", "2", 5, 5}, {"login", "1", 3, 3}, {"export", "1", 4, 4},
}

// take takes one unit, and returns how many were granted. It also takes for a newcomer, who
// must pass.
func (v victim) take(t *testing.T, d *daemon) int {
	if status := takeByRule(t, d, "newcomer", rand.Text()); status != http.StatusOK {
		t.Errorf("a newcomer got %d, want 200", status)
	}
	switch status := takeByRule(t, d, v.key, v.value); status {
	case http.StatusOK:
		return 1
	case http.StatusTooManyRequests:
	default:
		t.Errorf("%s=%s got %d, want a decision", v.key, v.value, status)
	}
	return 0
}

// attackers send n hostile requests through one API each.
var attackers = []func(t *testing.T, d *daemon, a *attacker, n int){attackTake, attackAuth, attackRESP, attackGRPC}

// An attacker makes up requests.
type attacker struct{ random *mathrand.Rand }

func pick[T any](a *attacker, choices ...T) T { return choices[a.random.IntN(len(choices))] }

func (a *attacker) key() string {
	v := pick(a, victims...)
	return pick(a, v.key+"="+v.value, v.value, "{"+v.key+"="+v.value+"}", "shop|"+v.key+"="+v.value,
		strings.Repeat("k", 4096), strconv.Itoa(a.random.IntN(50)), strconv.Itoa(a.random.Int()), strconv.Itoa(a.random.Int()))
}

func (a *attacker) limit() string {
	text := pick(a, "0", "1", "5", "300", "10000", "1000000000") + "/" + pick(a, "1ms", "1s", "1m", "1h", "24d", "31d", "366d")
	text += pick(a, "", " token-bucket", " leaky-bucket", " fixed-window", " fixed-window align=clock", " sliding-window", " sliding-log", " rolling-window", " rolling-window buckets=1000")
	text += pick(a, "", "", " burst=1", " burst=1000000", " burst=9223372036854775807")
	return text + pick(a, "", "", "", " name=shop/user", " name=shop/login", " name=shop/export", " name=override", " name=cl.throttle", " name=x")
}

func (a *attacker) cost() string {
	return pick(a, "1", "1", "1", "0", "-1", "300", "10000", "-9223372036854775808", "9223372036854775807")
}

// fillingRequest is valid and leaves as much behind as a client may.
func (a *attacker) fillingRequest() string {
	return fmt.Sprintf(`{"key":"%d","limit":%q,"cost":1}`, a.random.Int(), pick(a, "1/31d", "1/24d sliding-log", "5/31d rolling-window", "1/31d name=x"))
}

func (a *attacker) request() string {
	text := fmt.Sprintf(`{"key":%q,"limit":%q,"cost":%s`, a.key(), a.limit(), a.cost())
	return text + pick(a, "", "", fmt.Sprintf(`,"id":"%d"`, a.random.IntN(1000)), `,"at_most":true`, `,"max_delay":60`) + "}"
}

// attackTake sends lists and single requests.
func attackTake(t *testing.T, d *daemon, a *attacker, n int) {
	for n > 0 {
		request := pick(a, a.request, a.fillingRequest)
		body := request()
		n--
		if mode := pick(a, "", "each", "all"); mode != "" {
			for range a.random.IntN(8) {
				body += "," + request()
				n--
			}
			body = `{"mode":"` + mode + `","requests":[` + body + `]}`
		}
		post(t, d.addr("http"), body)
	}
}

// attackAuth sends what a proxy would be sent, and Envoy's JSON.
func attackAuth(t *testing.T, d *daemon, a *attacker, n int) {
	base := "http://" + d.addr("http")
	for range n {
		v := pick(a, victims...)
		limit := strings.ReplaceAll(a.limit(), " leaky-bucket", "") // which would hold the request
		get(t, base+"/v1/auth?"+pick(a,
			"key="+pick(a, v.value, strconv.Itoa(a.random.Int()))+"&limit="+strings.ReplaceAll(limit, " ", "+"),
			"domain=shop&other="+v.value, "domain=nowhere&"+v.key+"="+v.value, "key=header:X-Key&limit=1/31d"))
	}
}

// attackRESP sends commands in pipelines, and reads as many lines as it sent commands.
func attackRESP(t *testing.T, d *daemon, a *attacker, n int) {
	conn, err := net.Dial("tcp", d.addr("resp"))
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	replies := bufio.NewReader(conn)
	for ; n > 0; n -= 16 {
		var pipeline strings.Builder
		for range 15 {
			writeCommand(&pipeline, a.command())
		}
		writeCommand(&pipeline, []string{"ECHO", "end-of-pipeline"})
		if _, err := conn.Write([]byte(pipeline.String())); err != nil {
			t.Error(err)
			return
		}
		for line := ""; line != "end-of-pipeline\r\n"; {
			if line, err = replies.ReadString('\n'); err != nil {
				t.Error(err)
				return
			}
		}
	}
}

func (a *attacker) command() []string {
	v := pick(a, victims...)
	number := func() string { return pick(a, "0", "1", "60", "1000", "31622400", "9223372036854775807") }
	return pick(a,
		[]string{"CL.THROTTLE", a.key(), number(), number(), number(), pick(a, "0", "1", "1000")},
		[]string{"PENSTOCK.TAKE", "KEY", a.key(), "LIMIT", a.limit(), "COST", a.cost()},
		[]string{"PENSTOCK.TAKE", "DOMAIN", "shop", v.key, v.value, "COST", pick(a, "-1", "0")},
		[]string{"PENSTOCK.TAKE", "DOMAIN", "shop", v.key, v.value, "RESET"},
		[]string{"DEL", a.key()}, []string{"FLUSHALL"}, []string{"AUTH", "guess"})
}

func writeCommand(b *strings.Builder, words []string) {
	fmt.Fprintf(b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(b, "$%d\r\n%s\r\n", len(w), w)
	}
}

// attackGRPC sends overrides and refunds.
func attackGRPC(t *testing.T, d *daemon, a *attacker, n int) {
	service := envoyrls.NewRateLimitServiceClient(dialGRPC(t, d, nil))
	for n > 0 {
		r := &envoyrls.RateLimitRequest{Domain: pick(a, "shop", "shop", "nowhere")}
		for range 1 + a.random.IntN(8) {
			r.Descriptors = append(r.Descriptors, a.descriptor())
			n--
		}
		_, _ = service.ShouldRateLimit(t.Context(), r, grpc.WaitForReady(true))
	}
}

func (a *attacker) descriptor() *envoycommon.RateLimitDescriptor {
	v := pick(a, victims...)
	d := &envoycommon.RateLimitDescriptor{Entries: []*envoycommon.RateLimitDescriptor_Entry{{Key: v.key, Value: v.value}}}
	if a.random.IntN(4) == 0 {
		d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(1), true
		return d
	}
	d.Entries[0].Value = pick(a, v.value, strconv.Itoa(a.random.Int()))
	d.Limit = &envoycommon.RateLimitDescriptor_RateLimitOverride{
		RequestsPerUnit: pick(a, uint32(0), 1, 1<<32-1), Unit: pick(a, envoytype.RateLimitUnit_SECOND, envoytype.RateLimitUnit_DAY, envoytype.RateLimitUnit_YEAR),
	}
	return d
}
