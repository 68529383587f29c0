package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/roundtrip"
	"github.com/penstock-io/penstock/redisstore/internal/respcheck"
	"github.com/penstock-io/penstock/redisstore/internal/script"
	"github.com/redis/rueidis"
)

// A Finding is what [Check] found out about one thing that a store needs of Redis.
type Finding struct {
	What   string       `json:"what"`
	State  FindingState `json:"state"`
	Detail string       `json:"detail"`
	Advice string       `json:"advice,omitempty"` // what it costs, or what to change
}

// A FindingState says how well something works.
type FindingState string

// The states. What is degraded is exact, but costs something, or may not stay so; the advice says what.
const (
	Works    FindingState = "works"
	Degraded FindingState = "degraded"
	Broken   FindingState = "broken"
)

// permissions are the commands that the user of a store and of a daemon needs. HELLO and the last three are optional, and
// only Redis before 6.2 needs PEXPIREAT.
const permissions = "+hello +eval +evalsha +time +get +set +incrby +pttl +del +pexpiretime +pexpireat +append +setrange" +
	" +getrange +pexpire +zadd +zcount +zrem +zrevrange +zremrangebyscore +zremrangebyrank" +
	" +hget +hset +hdel +hscan +ping +info +script|load"

// checkTimeout bounds each call of Check: a slow server is a finding of its own.
const checkTimeout = 5 * time.Second

// Check connects to the Redis of a URL as [Open] does, and tries each thing that a store or a daemon needs, on keys that
// begin with the prefix and that it deletes. It returns an error if the server cannot be reached. The findings are text
// without control characters, whatever the server answers.
func Check(ctx context.Context, url string, o *Options) ([]Finding, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &checker{ctx: ctx, timeout: opts.Timeout}
	own := Options{Prefix: opts.Prefix + "-check-" + rand.Text(), Timeout: max(opts.Timeout, checkTimeout)}
	store, err := Open(ctx, url, &own)
	if refused := refusalOf(err, false); refused != nil {
		c.broken("connection", refused)
		return c.findings, nil
	}
	if advice := reachedAdvice(err); advice != "" {
		c.found("connection", Broken, err.Error(), advice)
		return c.findings, nil
	}
	if err != nil {
		return nil, err
	}
	defer store.Close()
	c.store, c.client = store, store.client.(*rueidisClient)
	c.keys.Client, store.client = store.client, &c.keys
	defer c.deleteKeys()
	c.checkConnection()
	executes := c.checkScripts()
	c.checkServers()
	if !executes {
		return c.findings, nil // no other call would end before its time
	}
	c.checkUses()
	c.checkClock()
	c.found("permissions", Works, "~"+opts.Prefix+"* "+permissions, "")
	return c.findings, nil
}

// A checker collects findings.
type checker struct {
	ctx      context.Context
	timeout  time.Duration // of the caller's options
	store    *Store
	client   *rueidisClient
	keys     keyRecorder
	findings []Finding
}

func (c *checker) found(what string, state FindingState, detail, advice string) {
	c.findings = append(c.findings, Finding{what, state, printable(detail), printable(advice)})
}

// broken adds an error.
func (c *checker) broken(what string, err error) {
	if refused := refusalOf(err, false); refused != nil {
		c.found(what, Broken, refused.Err.Error(), refused.Advice)
		return
	}
	c.found(what, Broken, err.Error(), passingAdvice(err, "the server does not answer, or not as Redis would"))
}

// passingAdvices are what to do about replies that contain a text, of a server that executes no writes for now.
var passingAdvices = []struct{ text, advice string }{
	{"OOM", "Redis is full, and evicts nothing: raise maxmemory, or move other data elsewhere"},
	{"NOREPLICAS", "it has fewer replicas in sync than min-replicas-to-write wants: bring them back, or lower it"},
	{"MISCONF", "Redis cannot save, and therefore refuses writes: see its log and its disk"},
	{"READONLY", "it is a replica: want its primary, which Sentinel and Cluster find by themselves"},
	{"MASTERDOWN", "it is a replica without its primary: want a primary"},
	{"LOADING", "Redis loads its data: wait until it has"},
	{"BUSY", "a script of another client does not end: SCRIPT KILL ends it, if it has written nothing"},
	{"max number of clients", "raise maxclients of Redis, or close connections to it"},
}

// passingAdvice returns what to do about an error that is no refusal, or else the other advice.
func passingAdvice(err error, other string) string {
	for _, a := range passingAdvices {
		if isReply(err) && strings.Contains(err.Error(), a.text) {
			return a.advice
		}
	}
	return other
}

// reachedAdvice returns what to do about an error of [Open] that something at the address has caused, or "" if nothing answers there.
func reachedAdvice(err error) string {
	if reply, ok := errors.AsType[*rueidis.RedisError](err); ok {
		return passingAdvice(reply, "it accepts no commands for now: see its log")
	}
	if _, ok := errors.AsType[*respcheck.Error](err); ok {
		return "what answers is no Redis: check host and port of the URL"
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return "it ends connections at once: raise its maxclients, or close some; use rediss:// if it wants TLS; leave its protected mode; or it is no Redis"
	}
	return ""
}

// printable returns a text without control characters, and the beginning of a very long one.
func printable(text string) string {
	const most = 400
	if len(text) > most {
		text = text[:most] + " …"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
}

// checkConnection says how Open has connected.
func (c *checker) checkConnection() {
	c.found("connection", Works, map[int32]string{
		byRESP3: "RESP3", byRESP2: "RESP2: HELLO 3 is refused", withoutHello: "RESP2, without HELLO",
	}[c.client.handshake.Load()], "")
}

// checkScripts says what a probe finds. That of Open may have found nothing, if the server executes no scripts for now.
func (c *checker) checkScripts() (executes bool) {
	const unshared = "calls are not batched, and a TakeAll of several keys takes two round trips"
	if c.isReplica() { // calls would be repeated until their time is over
		c.found("scripts", Broken, "READONLY: the server is a replica", passingAdvice(errReadOnly, ""))
		return false
	}
	if err := c.store.probe(c.roundTrip); refusalOf(err, false) != nil {
		c.broken("scripts", err)
		return false
	} else if err != nil {
		c.found("scripts", Broken, err.Error(), passingAdvice(err, "the server executes none for now: want a primary that accepts writes, with as many replicas as its min-replicas-to-write wants"))
		return false
	}
	switch spread := c.store.spread.Load(); {
	case c.client.Sharded():
		c.found("keys", Works, "a Cluster: keys of one slot share a script", "")
	case spread == oneServer:
		c.found("keys", Works, "all keys share a script", "")
	case spread == bySlot:
		c.found("keys", Degraded, "only keys of one slot share a script: a proxy before several servers", unshared)
	default:
		c.found("keys", Degraded, "no two keys share a script: a proxy before several servers, without hash tags", unshared)
	}
	switch form := c.store.form.Load(); {
	case form == nil:
		c.checkText()
	case form.text:
		c.found("scripts", Degraded, "EVALSHA is refused", "each call sends the text of its script, some kilobytes")
	default:
		c.foundOlder()
	}
	return true
}

// checkText sends the text of a script that asks for an expiry. What the probe has found does not show that either works:
// a server that has the scripts already wants their texts only after a restart, and scripts can do without the expiry.
func (c *checker) checkText() {
	call := c.run(Call{Script: expiryScript, Text: true})
	if call.Err != nil {
		call = c.run(Call{Script: expiryScript.older(), Text: true})
	}
	switch {
	case call.Err != nil:
		c.broken("scripts", call.Err)
	case len(call.Reply) != 1:
		c.broken("scripts", call.unexpectedReply())
	case call.Reply[0] == 0:
		c.foundOlder()
	default:
		c.found("scripts", Works, "EVALSHA", "")
	}
}

func (c *checker) foundOlder() {
	c.found("scripts", Degraded, "PEXPIRETIME is refused",
		"requests under an ID cost the server more: want Redis 7 or later, and a user who may use the command")
}

var errReadOnly = errors.New("READONLY")

// isReplica reports whether the only node is a replica.
func (c *checker) isReplica() bool {
	infos, _ := c.client.Info(c.ctx)
	for _, text := range infos {
		if len(infos) == 1 && parseInfo(text)["role"] == "slave" {
			return true
		}
	}
	return false
}

// checkServers reads the INFO of every node.
func (c *checker) checkServers() {
	infos, err := c.client.Info(c.ctx)
	if err != nil {
		c.broken("server", err)
	}
	for _, node := range slices.Sorted(maps.Keys(infos)) {
		info := parseInfo(infos[node])
		if info["redis_version"] == "" {
			c.found("server", Degraded, node+": INFO says no version", "make sure of Redis 6 or later, and of maxmemory-policy noeviction")
			continue
		}
		saved := "a restart forgets what is not in a snapshot"
		if info["aof_enabled"] == "1" {
			saved = "AOF"
		}
		c.found("server", Works, fmt.Sprintf("%s: %s, %s, %s replicas; %s", node, serverName(info), info["role"], info["connected_slaves"], saved), "")
		if policy := info["maxmemory_policy"]; policy == "noeviction" {
			c.found("eviction", Works, policy, "")
		} else {
			c.found("eviction", Degraded, cmp.Or(policy, "not known"), "an evicted key gets its whole burst back: set maxmemory-policy noeviction")
		}
	}
}

// serverName returns the name and version of a server. Others than Redis say which version of it they resemble.
func serverName(info map[string]string) string {
	for _, name := range []string{"valkey", "redict", "dragonfly", "kvrocks", "garnet"} {
		if version := info[name+"_version"]; version != "" {
			return fmt.Sprintf("%s %s, like Redis %s", name, version, info["redis_version"])
		}
	}
	return "Redis " + info["redis_version"]
}

// checkUses tries each kind of script, in limits of few units an hour.
func (c *checker) checkUses() {
	for _, use := range []struct {
		what, detail string
		try          func() error
	}{
		{"takes", "exact, by every algorithm", c.tryTakes},
		{"several keys", "all or nothing", c.tryTakeAll},
		{"IDs", "charged once", func() error { return c.tryIDs(penstock.TokenBucket) }},
		{"permits", "held and released", func() error { return c.tryIDs(penstock.Concurrent) }},
		{"overrides", "shared by daemons", func() error { return c.eval(hashScript).Err }},
		{"fleet", "daemons see each other", func() error { return errors.Join(c.eval(boardScript).Err, c.eval(textScript).Err) }},
	} {
		if err := use.try(); err != nil {
			c.broken(use.what, err)
		} else {
			c.found(use.what, Works, use.detail, "")
		}
	}
}

// checkedUnits is the count of the limits: a script creates a key with the first unit, and changes it with the next.
const checkedUnits = 2

// A step is a request, and the answer that is wanted.
type step struct {
	request penstock.Request
	allowed bool
}

// takeSteps sends requests in turn, and returns an error at the first answer that is not the one wanted.
func (c *checker) takeSteps(steps ...step) error {
	for _, s := range steps {
		s.request.Limit.Count, s.request.Limit.Period = checkedUnits, time.Hour
		d, err := c.store.Take(c.ctx, s.request)
		if err == nil && d.Allowed != s.allowed {
			err = fmt.Errorf("%s: %v, want allowed=%t", s.request.Limit, d, s.allowed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tryTakes takes all units under each algorithm that counts units, one more, and refunds all, which deletes the key.
func (c *checker) tryTakes() error {
	for _, a := range penstock.Algorithms() {
		r := penstock.Request{Key: "take", Limit: penstock.Limit{Algorithm: a}, Cost: 1}
		if r.Limit.HasPermits() {
			continue
		}
		refund := r
		refund.Cost = -checkedUnits
		if err := c.takeSteps(step{r, true}, step{r, true}, step{r, false}, step{refund, true}); err != nil {
			return err
		}
	}
	return nil
}

// tryTakeAll takes from keys of several slots at once, then from each, and then there is nothing left.
func (c *checker) tryTakeAll() error {
	var rs [4]penstock.Request
	for i := range rs {
		limit := penstock.PerHour(checkedUnits).WithAlgorithm(penstock.FixedWindow)
		rs[i] = penstock.Request{Key: strconv.Itoa(i), Limit: limit, Cost: 1}
	}
	var all, each, more [len(rs)]penstock.Decision
	err := c.store.TakeAll(c.ctx, rs[:], all[:])
	if err == nil {
		err = c.store.TakeEach(c.ctx, rs[:], each[:])
	}
	if err == nil {
		err = c.store.TakeEach(c.ctx, rs[:], more[:])
	}
	for i := range rs {
		if err == nil && (!all[i].Allowed || !each[i].Allowed || more[i].Allowed) {
			err = fmt.Errorf("key %d: %v, then %v, then %v, want only the last denied", i, all[i], each[i], more[i])
		}
	}
	return err
}

// tryIDs repeats a take under its ID, takes the rest under another ID, and refunds the first for a third. Then it settles
// or releases what is left.
func (c *checker) tryIDs(a penstock.Algorithm) error {
	under := func(id string, cost int64) penstock.Request {
		return penstock.Request{Key: "id", Limit: penstock.Limit{Algorithm: a}, Cost: cost, ID: id}
	}
	last, end := under("2", -1), under("3", 0)
	if end.Settle = true; end.Limit.HasPermits() {
		end = under("3", -1)
	}
	return c.takeSteps(step{under("1", 1), true}, step{under("1", 1), true}, step{under("2", 1), true}, step{under("3", 1), false},
		step{under("1", -1), true}, step{under("3", 1), true}, step{last, true}, step{end, true})
}

// These use what scripts of the daemon need besides.
var (
	hashScript = newScript("check-hash", `
redis.call('HSET', KEYS[1], 'a', 1)
redis.call('HGET', KEYS[1], 'a')
redis.call('HSCAN', KEYS[1], 0)
return redis.call('HDEL', KEYS[1], 'a')`)
	boardScript = newScript("check-board", `
redis.call('ZADD', KEYS[1], 1, 'a')
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('ZCOUNT', KEYS[1], 0, 1)
redis.call('ZREVRANGE', KEYS[1], 0, 1)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 0)
redis.call('ZREMRANGEBYRANK', KEYS[1], 5, 6)
return redis.call('ZREM', KEYS[1], 'a')`)
	textScript = newScript("check-text", `
redis.call('SET', KEYS[1], 'a', 'PX', 1000)
redis.call('GETRANGE', KEYS[1], 0, 1)
return 1`)
	expiryScript = newScript("check-expiry", `
return type(`+script.AskExpiry+`) == 'number' and 1 or 0`)
	timeScript = newScript("check-clock", `
local time = redis.call('TIME')
return {time[1] + 0, time[2] + 0}`)
	deleteScript = newScript("check-delete", `
local keys, KEYS = KEYS, {}
for i = 1, #keys do
  KEYS[1] = keys[i]
  redis.call('DEL', KEYS[1])
end
return 1`)
)

// eval runs a script on a key of its own.
func (c *checker) eval(s *Script) Call { return c.run(Call{Script: s}) }

func (c *checker) run(call Call) Call {
	call.Keys = []string{c.store.prefix + ":" + call.Script.Name}
	calls := []Call{call}
	c.roundTrip(calls)
	return calls[0]
}

func (c *checker) roundTrip(calls []Call) {
	d := c.store.deadlineAfter(c.ctx, time.Now(), c.store.timeout)
	defer d.stop()
	c.store.roundTrip(d, calls)
	for i := range calls {
		if last := calls[i].lastErr; errors.Is(calls[i].Err, context.DeadlineExceeded) && last != nil {
			calls[i].Err = last // what the server said tells more than that the time is up
		}
	}
}

// checkClock compares the clocks, and measures round trips.
func (c *checker) checkClock() {
	var ahead time.Duration
	shortest := time.Duration(math.MaxInt64) // the trip that tells most about the difference
	trips, err := roundtrip.Measure(c.ctx, func(context.Context) error {
		begin := time.Now()
		call := c.eval(timeScript)
		trip := time.Since(begin)
		switch {
		case call.Err != nil:
			return call.Err
		case len(call.Reply) != 2:
			return call.unexpectedReply()
		case trip < shortest:
			shortest, ahead = trip, time.Unix(call.Reply[0], call.Reply[1]*1000).Sub(begin.Add(trip/2))
		}
		return nil
	})
	if err != nil {
		c.broken("clock", err)
		return
	}
	state, advice := Works, ""
	if ahead.Abs() > time.Second {
		state, advice = Degraded, "decisions follow the clock of Redis, those of a fallback the local one: synchronise them"
	}
	c.found("clock", state, "differs from this machine's by "+ahead.Round(time.Millisecond).String(), advice)
	v := trips.Assess(c.timeout)
	c.found("round trip", []FindingState{Works, Degraded, Broken}[v.Grade], v.Detail, v.Advice)
}

// deleteKeys deletes the keys of all calls. Those of one call shared a script, and may be where only such a script finds them.
func (c *checker) deleteKeys() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), c.store.timeout)
	defer cancel()
	c.keys.mu.Lock()
	defer c.keys.mu.Unlock()
	c.client.Do(ctx, c.keys.deletions)
}

// A keyRecorder notes how to delete the keys of calls.
type keyRecorder struct {
	Client
	mu        sync.Mutex
	deletions []Call
}

// Do implements [Client].
func (k *keyRecorder) Do(ctx context.Context, calls []Call) {
	k.mu.Lock()
	for i := range calls {
		k.deletions = append(k.deletions, Call{Script: deleteScript, Text: true, Keys: slices.Clone(calls[i].Keys)})
	}
	k.mu.Unlock()
	k.Client.Do(ctx, calls)
}
