package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// alive returns the nodes that answer.
func (c *cluster) alive() (nodes []*redistest.Server) {
	for _, node := range c.Nodes {
		if _, err := node.Command("PING"); err == nil {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// TestStoreOnCluster runs all steps on one Cluster, because starting one takes
// seconds. The last step kills a node.
func TestStoreOnCluster(t *testing.T) {
	t.Parallel()
	c := &cluster{redistest.StartCluster(t)}
	for _, step := range []struct {
		name string
		do   func(*testing.T, *cluster)
	}{
		{"agrees with memory", checkClusterAgreement},
		{"Open loads scripts", checkClusterLoadsScripts},
		{"minimal permissions", checkClusterUser},
		{"keys with one tag share a script", checkClusterTagSharesScript},
		{"denied TakeAll takes nothing", checkClusterDenialTakesNothing},
		{"concurrent TakeAll across slots", checkClusterConcurrentTakeAll},
		{"odd requests fail alone", checkClusterOddRequests},
		{"process killed within TakeAll", checkClusterKilledProcess},
		{"records of TakeAll expire soon", checkClusterRecordExpiry},
		{"canceled TakeAll is refunded", checkClusterCanceledTakeAll},
		{"unserved slot", checkClusterUnservedSlot},
		{"hung node", checkClusterHungNode},
		{"slot migration under load", checkClusterMigration},
		{"script flush under load", checkClusterScriptFlush},
		{"failover under load", checkClusterFailover},
		{"lost node", checkClusterLostNode},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, c) }) {
			return
		}
		checkExpiry(t, c.alive()...)
	}
}

// checkClusterAgreement makes every kind of request with every algorithm on all shards.
func checkClusterAgreement(t *testing.T, c *cluster) {
	store, memory := openURL(t, c.URL(), longTimeout), penstock.NewMemory(nil)
	var rs []penstock.Request
	for i, l := range slowLimits {
		for _, r := range []penstock.Request{
			{Cost: 5},
			{Cost: 7, ID: "x"},
			{Cost: 7, ID: "x"},
			{Cost: 0},
			{Cost: -7, ID: "x"},
			{Cost: -2}, // last, because Redis cannot tell apart units of one millisecond
			{Cost: 2 * burst, AtMost: true},
			{Cost: 1},
			{Cost: penstock.Reset},
			{Cost: 1},
		} {
			for shard := range 4 {
				r.Key, r.Limit = fmt.Sprint("key ", i, shard), l
				rs = append(rs, r)
			}
		}
	}
	got, want := make([]penstock.Decision, len(rs)), make([]penstock.Decision, len(rs))
	for i, r := range rs {
		var err, errMemory error
		got[i], err = store.Take(t.Context(), r)
		want[i], errMemory = memory.Take(t.Context(), r)
		if err != nil || errMemory != nil {
			t.Fatalf("%+v: %v, %v", r, err, errMemory)
		}
	}
	for i := range rs {
		if g, w := got[i], want[i]; g.Allowed != w.Allowed || g.Granted != w.Granted || g.Remaining != w.Remaining {
			t.Errorf("%+v: got %+v, want %+v", rs[i], g, w)
		}
	}
	checkClusterTakeEach(t, c, store)
}

// checkClusterTakeEach decides many requests in one round trip to each node.
func checkClusterTakeEach(t *testing.T, c *cluster, store *redisstore.Store) {
	t.Helper()
	rs, ds := make([]penstock.Request, 100), make([]penstock.Decision, 100)
	for i := range rs {
		rs[i] = penstock.Request{Key: "each " + strconv.Itoa(i/2), Limit: slowLimits[0], Cost: burst}
	}
	if err := penstock.TakeEach(t.Context(), store, rs, ds); err != nil {
		t.Fatal(err)
	}
	for i, d := range ds {
		if want := i%2 == 0; d.Allowed != want {
			t.Errorf("request %d of a whole burst: allowed %v, want %v", i, d.Allowed, want)
		}
	}
	for i, node := range c.Nodes[:shards] {
		if infoCounter(t, "cmdstat_evalsha", node) == 0 {
			t.Errorf("node %d received no call", i)
		}
	}
}

func checkClusterUser(t *testing.T, c *cluster) {
	prefix := newPrefix()
	user := append([]string{"ACL", "SETUSER", "limiter", "on", ">secret", "resetchannels", "~" + prefix + "*", "-@all"}, requiredCommands...)
	for _, node := range c.Nodes {
		mustCommand(t, node, append(user, "+cluster|slots", "+cluster|shards", "+asking")...)
	}
	store, keys := openPrefix(t, strings.Replace(c.URL(), "://", "://limiter:secret@", 1), prefix, longTimeout), c.keyPerShard(t)
	for _, l := range slowLimits {
		takeAll(t, store, l, 1, keys[:]...)
	}
}

func (c *cluster) evalCalls(t *testing.T) int {
	t.Helper()
	return infoCounter(t, "cmdstat_evalsha", c.Nodes...)
}

func takeAll(t *testing.T, s penstock.Store, limit penstock.Limit, cost int64, keys ...string) []penstock.Decision {
	t.Helper()
	var rs []penstock.Request
	for _, key := range keys {
		rs = append(rs, penstock.Request{Key: key, Limit: limit, Cost: cost})
	}
	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeAll(t.Context(), s, rs, ds); err != nil {
		t.Fatal(err)
	}
	return ds
}

// checkClusterTagSharesScript checks that keys with one hash tag are decided by one
// script.
func checkClusterTagSharesScript(t *testing.T, c *cluster) {
	store := openURL(t, c.URL(), longTimeout)
	keys := []string{"a{tenant}", "b{tenant}", "{tenant}c"}
	takeAll(t, store, slowLimits[0], 1, keys...) // loads the script
	before := c.evalCalls(t)
	for _, d := range takeAll(t, store, slowLimits[0], 1, keys...) {
		if !d.Allowed || d.Remaining != burst-2 {
			t.Errorf("taking 1 of each for the second time: %+v, want %d remaining", d, burst-2)
		}
	}
	if n := c.evalCalls(t) - before; n != 1 {
		t.Errorf("three keys with one tag took %d scripts, want 1", n)
	}
}

// checkClusterDenialTakesNothing checks that a denied TakeAll changes no key.
func checkClusterDenialTakesNothing(t *testing.T, c *cluster) {
	store := openURL(t, c.URL(), longTimeout)
	keys := []string{"one", "two", "three"}
	for _, l := range slowLimits {
		for _, d := range takeAll(t, store, l, 10, keys...) {
			if !d.Allowed || d.Granted != 10 || d.Remaining != burst-10 {
				t.Errorf("%s: 10 of each: %+v, want all of them", l, d)
			}
		}
		takeAll(t, store, l, burst-15, "three")
		for i, d := range takeAll(t, store, l, 10, keys...) {
			if refuses := keys[i] == "three"; d.Allowed == refuses || (d.RetryAfter > 0) != refuses || d.Granted != 0 {
				t.Errorf("%s: 10 of each when %q has 5: %q got %+v", l, "three", keys[i], d)
			}
		}
		for i, want := range []int64{burst - 10, burst - 10, 5} {
			d, err := store.Take(t.Context(), penstock.Request{Key: keys[i], Limit: l})
			if err != nil || d.Remaining != want {
				t.Errorf("%s: after a refusal %q has %d, %v, want %d", l, keys[i], d.Remaining, err, want)
			}
		}
	}
}

// checkClusterConcurrentTakeAll runs overlapping TakeAlls on keys of all shards until there
// is nothing left to grant, which shows that they make progress, and a while longer.
func checkClusterConcurrentTakeAll(t *testing.T, c *cluster) {
	for _, l := range slowLimits {
		h := &takeAllHistory{limit: l, keys: c.keyPerShard(t)}
		store := openURL(t, c.URL(), longTimeout)
		var wg sync.WaitGroup
		for caller := range uint64(8) {
			wg.Go(func() { h.run(t, store, rand.New(rand.NewPCG(fixedseed.Seed(), caller))) })
		}
		wg.Wait()
		h.check(t, store)
	}
}

// A takeAllHistory is what concurrent TakeAlls were granted of keys whose limit is burst.
type takeAllHistory struct {
	limit penstock.Limit
	keys  [shards]string
	start sync.Once
	zero  time.Time

	mu    sync.Mutex
	calls []takeAllCall
}

type takeAllCall struct {
	began, ended time.Duration
	costs        [shards]int64 // by key, 0 if it did not ask for it
	denied       [shards]bool
	granted      bool
}

// run calls until only one key may be left that is not used up, and a few times more.
func (h *takeAllHistory) run(t *testing.T, store *redisstore.Store, random *rand.Rand) {
	for after := 0; after < 5 && !t.Failed(); {
		usedUp := 0
		for key := range h.keys {
			if h.granted(key) == burst {
				usedUp++
			}
		}
		if usedUp >= shards-1 {
			after++
		}
		h.take(t, store, random)
	}
}

// take takes from some of the keys, in any order, at times under an ID.
func (h *takeAllHistory) take(t *testing.T, store *redisstore.Store, random *rand.Rand) {
	h.start.Do(func() { h.zero = time.Now() })
	order := random.Perm(shards)[:2+random.IntN(shards-1)]
	var c takeAllCall
	var rs []penstock.Request
	id := ""
	if random.IntN(4) == 0 {
		id = strconv.FormatUint(random.Uint64(), 36)
	}
	for _, i := range order {
		c.costs[i] = 1 + random.Int64N(2)
		rs = append(rs, penstock.Request{Key: h.keys[i], Limit: h.limit, Cost: c.costs[i], ID: id})
	}
	ds := make([]penstock.Decision, len(rs))
	c.began = time.Since(h.zero)
	if err := penstock.TakeAll(context.Background(), store, rs, ds); err != nil {
		t.Error(err)
	}
	c.ended, c.granted = time.Since(h.zero), allAllowed(ds)
	for at, i := range order {
		c.denied[i] = !ds[at].Allowed
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
}

// granted returns what was granted of a key.
func (h *takeAllHistory) granted(key int) (sum int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.calls {
		if h.calls[i].granted {
			sum += h.calls[i].costs[key]
		}
	}
	return sum
}

// check fails unless exactly what was granted is charged, and every denial was due to what
// other calls had been granted or could have reserved.
func (h *takeAllHistory) check(t *testing.T, store *redisstore.Store) {
	t.Helper()
	for i, key := range h.keys {
		granted := h.granted(i)
		if d := take(t, store, penstock.Request{Key: key, Limit: h.limit}); granted > burst || d.Remaining != burst-granted {
			t.Errorf("%s, key %d: granted %d of %d, but %d remain", h.limit, i, granted, burst, d.Remaining)
		}
	}
	denied, lost := 0, 0
	for i := range h.calls {
		for key := range h.keys {
			if !h.calls[i].denied[key] {
				continue
			}
			denied++
			most, sure := h.charged(i, key)
			if most+h.calls[i].costs[key] <= burst {
				t.Errorf("%s: call %+v was denied key %d, of which at most %d were charged", h.limit, h.calls[i], key, most)
			}
			if sure+h.calls[i].costs[key] <= burst {
				lost++
			}
		}
	}
	t.Logf("%s: %d calls, %d denials of a key, %d of these due to reservations", h.limit, len(h.calls), denied, lost)
}

// charged returns how many units of a key may have been charged during a call: those of calls
// that were granted before it ended, and of calls in flight; and without the latter.
func (h *takeAllHistory) charged(call, key int) (most, sure int64) {
	during := &h.calls[call]
	for i := range h.calls {
		if c := &h.calls[i]; i != call && c.began < during.ended && (c.granted || c.ended > during.began) {
			if most += c.costs[key]; c.granted {
				sure += c.costs[key]
			}
		}
	}
	return most, sure
}

func checkClusterOddRequests(t *testing.T, c *cluster) {
	prefix := newPrefix()
	checkOddRequests(t, openPrefix(t, c.URL(), prefix, longTimeout), prefix, c.Nodes[:shards]...)
}

// keyPerShard returns one key for each shard.
func (c *cluster) keyPerShard(t *testing.T) (keys [shards]string) {
	t.Helper()
	for i := range 100 {
		keys[c.Owner(t, c.Slot(t, strconv.Itoa(i)))] = strconv.Itoa(i)
		if !slices.Contains(keys[:], "") {
			return keys
		}
	}
	t.Fatalf("no keys of all shards: %q", keys)
	return keys
}

// beginMigration half-moves the slot of a key that has a state. Peeks are answered,
// but calls for a state and a record get TRYAGAIN until settle.
func (c *cluster) beginMigration(t *testing.T, key string) (settle func()) {
	t.Helper()
	slot := c.Slot(t, key)
	from, number := c.Owner(t, slot), strconv.Itoa(slot)
	to := (from + 1) % shards
	mustCommand(t, c.Nodes[to], "CLUSTER", "SETSLOT", number, "IMPORTING", c.IDs[from])
	mustCommand(t, c.Nodes[from], "CLUSTER", "SETSLOT", number, "MIGRATING", c.IDs[to])
	return func() {
		for _, i := range []int{from, to} {
			mustCommand(t, c.Nodes[i], "CLUSTER", "SETSLOT", number, "STABLE")
		}
	}
}

// tryAgainErrors returns the number of TRYAGAIN replies.
func (c *cluster) tryAgainErrors(t *testing.T) int {
	t.Helper()
	return infoCounter(t, "errorstat_TRYAGAIN", c.Nodes[:shards]...)
}

// quickLimits has limits of every kind that are full again after some seconds.
func quickLimits() []penstock.Limit {
	limits := slices.Clone(slowLimits)
	for i := range limits {
		limits[i].Period = time.Second
	}
	return limits
}

// checkClusterKilledProcess kills a process that has taken from two of three shards.
func checkClusterKilledProcess(t *testing.T, c *cluster) {
	const cost = 7
	prefix := newPrefix()
	store, keys := openPrefix(t, c.URL(), prefix, longTimeout), c.keyPerShard(t)
	var rs []penstock.Request
	for i := range slowLimits {
		rs = append(rs, penstock.Request{Key: keys[0], Limit: slowLimits[i], Cost: cost},
			penstock.Request{Key: keys[1], Limit: quickLimits()[i], Cost: cost})
	}
	last := penstock.Request{Key: keys[2], Limit: slowLimits[0], Cost: 1}
	take(t, store, last)
	settle, before := c.beginMigration(t, keys[2]), c.tryAgainErrors(t)
	w := startWorker(t, c.URL(), prefix, 0)
	if err := w.in.Encode(job{Requests: append(rs, last), TakeAll: true}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the process takes from all keys but the last", func() bool {
		return c.tryAgainErrors(t) > before && c.records(t, prefix) == len(rs)
	})
	w.kill(t)
	settle()

	for _, r := range rs {
		if !slices.Contains(slowLimits, r.Limit) {
			r.Cost = 0
			waitFor(t, "the units refill", func() bool { return take(t, store, r).Remaining == burst })
			continue
		}
		r.Cost, r.AtMost = 10*burst, true
		if d := take(t, store, r); d.Granted != burst-cost {
			t.Errorf("%s: %d remained, want %d after %d were taken", r.Limit, d.Granted, burst-cost, cost)
		}
	}
	if d := take(t, store, last); d.Remaining != burst-2 {
		t.Errorf("the last key has %d remaining, want %d: nothing was taken from it", d.Remaining, burst-2)
	}
}

// checkClusterRecordExpiry checks that the records of a TakeAll across slots live for
// some timeouts and not as long as its limits.
func checkClusterRecordExpiry(t *testing.T, c *cluster) {
	prefix, keys := newPrefix(), c.keyPerShard(t)
	const mostTTL = int(41 * longTimeout / time.Millisecond) // a call and its roll-back take 20 timeouts each; the limit is a day
	takeAll(t, openPrefix(t, c.URL(), prefix, longTimeout), slowLimits[2], 1, keys[:]...)
	for _, node := range c.Nodes[:shards] {
		for _, name := range strings.Fields(mustCommand(t, node, "KEYS", prefix+"!*")) {
			if ttl, err := strconv.Atoi(mustCommand(t, node, "PTTL", name)); err != nil || ttl > mostTTL {
				t.Errorf("a record lives for %d ms (%v), want at most %d", ttl, err, mostTTL)
			}
		}
	}
	if n := c.records(t, prefix); n != shards {
		t.Errorf("%d records, want one for each key", n)
	}
}

// records returns how many records of grants the shards hold.
func (c *cluster) records(t *testing.T, prefix string) (n int) {
	t.Helper()
	for _, node := range c.Nodes[:shards] {
		n += len(strings.Fields(mustCommand(t, node, "KEYS", prefix+"!*")))
	}
	return n
}

// checkClusterCanceledTakeAll cancels a TakeAll that has taken from some shards: it
// ends at once and refunds them.
func checkClusterCanceledTakeAll(t *testing.T, c *cluster) {
	store, keys := openURL(t, c.URL(), longTimeout), c.keyPerShard(t)
	rs := make([]penstock.Request, shards)
	for i, key := range keys {
		rs[i] = penstock.Request{Key: key, Limit: slowLimits[i], Cost: 5}
	}
	take(t, store, rs[2])
	settle, before := c.beginMigration(t, keys[2]), c.tryAgainErrors(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- penstock.TakeAll(ctx, store, rs, make([]penstock.Decision, shards)) }()
	waitFor(t, "the last key is about to be taken", func() bool { return c.tryAgainErrors(t) > before })
	cancel()
	for i, key := range keys[:2] {
		waitFor(t, "the other keys are refunded", func() bool {
			return take(t, store, penstock.Request{Key: key, Limit: slowLimits[i]}).Remaining == burst
		})
	}
	settle()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled TakeAll: got %v, want %v", err, context.Canceled)
	}
}

// checkClusterUnservedSlot removes a slot from all nodes and adds it again.
func checkClusterUnservedSlot(t *testing.T, c *cluster) {
	keys := c.keyPerShard(t)
	slot := c.Slot(t, keys[1])
	number, owner := strconv.Itoa(slot), c.Owner(t, slot)
	for _, node := range c.Nodes {
		mustCommand(t, node, "CLUSTER", "DELSLOTS", number)
	}
	for range 2 { // the second store never knew the node of the slot
		quick := openURL(t, c.URL(), 50*time.Millisecond)
		waitFor(t, "an error names the slot", func() bool {
			_, err := quick.Take(t.Context(), penstock.Request{Key: keys[1], Limit: slowLimits[0], Cost: 1})
			if !errors.Is(err, penstock.ErrUnavailable) {
				t.Fatalf("a slot that no node serves: got %v, want %v", err, penstock.ErrUnavailable)
			}
			return strings.Contains(err.Error(), "slot "+number)
		})
		waitFor(t, "keys of other slots are decided", func() bool {
			_, err := quick.Take(t.Context(), penstock.Request{Key: keys[0], Limit: slowLimits[0], Cost: 1})
			return err == nil
		})
	}
	patient, answered := openURL(t, c.URL(), longTimeout), make(chan error)
	go func() {
		_, err := patient.Take(context.Background(), penstock.Request{Key: keys[1], Limit: slowLimits[0], Cost: 1})
		answered <- err
	}()
	mustCommand(t, c.Nodes[owner], "CLUSTER", "ADDSLOTS", number)
	if err := <-answered; err != nil {
		t.Errorf("a call that waited for the slot to be served: %v", err)
	}
	waitFor(t, "the Cluster is complete", func() bool { return c.Complete(t) })
}

// checkClusterMigration moves the slots of keys that are in use.
func checkClusterMigration(t *testing.T, c *cluster) {
	load := startLoad(t, openURL(t, c.URL(), longTimeout))
	moved := 0
	redirected := func() bool { return infoCounter(t, "errorstat_ASK", c.Nodes...) > 0 }
	for round := 0; round < 3 || round < 50 && !redirected(); round++ {
		load.waitAnswers(t, 300)
		for i := range 8 {
			name := fmt.Sprintf("k%d", max(load.newest.Load()-int64(i), 0))
			slot := c.Slot(t, name)
			moved += c.MigrateSlot(t, slot, (c.Owner(t, slot)+1+round%2)%shards)
		}
	}
	load.waitAnswers(t, 300)
	load.closeAndDrain(t)
	load.checkNoFailures(t)
	asks, moves, tries := infoCounter(t, "errorstat_ASK", c.Nodes...), infoCounter(t, "errorstat_MOVED", c.Nodes...), infoCounter(t, "errorstat_TRYAGAIN", c.Nodes...)
	t.Logf("%d keys moved; %d ASK, %d MOVED, %d TRYAGAIN", moved, asks, moves, tries)
	if moved == 0 || asks == 0 || moves == 0 {
		t.Errorf("%d keys moved, %d ASK, %d MOVED: the load did not meet the migration", moved, asks, moves)
	}
}

func checkClusterScriptFlush(t *testing.T, c *cluster) {
	load := startLoad(t, openURL(t, c.URL(), longTimeout))
	for range 20 {
		load.waitAnswers(t, 50)
		flushScripts(t, c.Nodes[:shards]...)
	}
	load.closeAndDrain(t)
	load.checkNoFailures(t)
}

// flushScripts removes the scripts of servers under load, and waits until a call has
// missed one.
func flushScripts(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	before := infoCounter(t, "errorstat_NOSCRIPT", servers...)
	for _, server := range servers {
		mustCommand(t, server, "SCRIPT", "FLUSH")
	}
	waitFor(t, "a call misses a script", func() bool { return infoCounter(t, "errorstat_NOSCRIPT", servers...) > before })
}

// checkClusterFailover promotes a replica without a crash, as for maintenance.
func checkClusterFailover(t *testing.T, c *cluster) {
	load := startLoad(t, openURL(t, c.URL(), longTimeout))
	load.waitAnswers(t, 300)
	var begun time.Time
	waitFor(t, "the replica is promoted", func() bool {
		if infoField(t, c.Nodes[shards], "role") == "master" {
			return true
		}
		// A replica gives up after five seconds; then the failover is requested again.
		if time.Since(begun) > 10*time.Second {
			mustCommand(t, c.Nodes[shards], "CLUSTER", "FAILOVER")
			begun = time.Now()
		}
		return false
	})
	load.waitAnswers(t, 300)
	load.closeAndDrain(t)
	load.checkNoFailures(t)
	waitFor(t, "the Cluster is complete", func() bool { return c.Complete(t) })
}

// checkNewOwnerFound calls through stores that do not know yet that a node has
// failed. The other nodes redirect them. An ID lets a store repeat calls on
// connections that the killed node has closed. It returns the units granted.
func checkNewOwnerFound(t *testing.T, c *cluster, unaware []*redisstore.Store, victim int, key string) (granted int64) {
	t.Helper()
	heir := mustCommand(t, c.Nodes[victim+shards], "CLUSTER", "MYID")
	waitFor(t, "all nodes know the new owner", func() bool {
		for _, node := range c.alive() {
			if !regexp.MustCompile(heir + " .*master .* connected [0-9]").MatchString(mustCommand(t, node, "CLUSTER", "NODES")) {
				return false
			}
		}
		return true
	})
	moved := redirections(t, c.alive())
	for i, store := range unaware { // the node that a store tries first may be the new owner by chance
		r := penstock.Request{Key: key, Limit: slowLimits[2], Cost: 1, ID: strconv.Itoa(i)}
		d, err := store.Take(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		granted += d.Granted
	}
	if redirections(t, c.alive()) == moved {
		t.Error("no node redirected a call")
	}
	return granted
}

func redirections(t *testing.T, nodes []*redistest.Server) (n int) {
	t.Helper()
	for _, node := range nodes {
		_, rest, _ := strings.Cut(mustCommand(t, node, "INFO", "errorstats"), "errorstat_MOVED:count=")
		digits := regexp.MustCompile("^[0-9]*").FindString(rest)
		if count, err := strconv.Atoi(digits); err == nil {
			n += count
		}
	}
	return n
}

// keyOnAndOff returns a key that a node owns, and one that another node owns.
func (c *cluster) keyOnAndOff(t *testing.T, node int) (on, off string) {
	t.Helper()
	for i := range 100 {
		if c.Owner(t, c.Slot(t, strconv.Itoa(i))) == node {
			on = strconv.Itoa(i)
		} else {
			off = strconv.Itoa(i)
		}
	}
	return on, off
}

// checkClusterHungNode calls a node that hangs, while the others answer. Calls end with their
// timeout, also when there are more without an answer than the queue of a connection has room
// for: 1024 with this MaxCalls.
func checkClusterHungNode(t *testing.T, c *cluster) {
	const callers, calls, victim = 200, 2500, 1
	o := redisstore.Options{Timeout: 50 * time.Millisecond, MaxCalls: 256}
	store := openOptions(t, c.URL(), o.WithConnTimeout(time.Hour))
	hung, kept := c.keyOnAndOff(t, victim)
	r := penstock.Request{Key: hung, Limit: penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1 << 40, Period: 24 * time.Hour}, Cost: 1}
	var answered atomic.Int64
	call := func(calls int64) (ended chan struct{}) {
		var made atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for made.Add(1) <= calls {
					_, _ = store.Take(context.Background(), r)
					if _, err := store.Take(context.Background(), penstock.Request{Key: kept, Limit: r.Limit}); err == nil {
						answered.Add(1)
					}
				}
			})
		}
		ended = make(chan struct{})
		go func() { wg.Wait(); close(ended) }()
		return ended
	}
	<-call(calls) // from the first calls at the same time on, connections have a queue
	waitFor(t, "the store is warm", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
	pauseServer(t, c.Nodes[victim])
	ended := call(calls)
	select {
	case <-ended:
	case <-time.After(longTimeout):
		t.Errorf("some calls wait for the node that hangs")
	}
	if err := c.Nodes[victim].Resume(); err != nil {
		t.Fatal(err)
	}
	<-ended
	t.Logf("the other nodes answered %d calls", answered.Load())
	waitFor(t, "the node answers again", func() bool { _, err := store.Take(t.Context(), r); return err == nil })
}

// checkClusterLostNode kills a primary. Its keys are unavailable until the replica
// has taken over; keys of other shards stay available.
func checkClusterLostNode(t *testing.T, c *cluster) {
	patient, quick := openPrefix(t, c.URL(), "lost", longTimeout), openPrefix(t, c.URL(), "lost", 50*time.Millisecond)
	unaware := make([]*redisstore.Store, 20) // of which each learns of the new owner by its first call, or by chance before
	for i := range unaware {
		unaware[i] = openPrefix(t, c.URL(), "lost", longTimeout)
	}
	const victim = 1
	lost, kept := c.keyOnAndOff(t, victim)
	take := func(store *redisstore.Store, key string) (penstock.Decision, error) {
		return store.Take(t.Context(), penstock.Request{Key: key, Limit: slowLimits[2], Cost: 1})
	}
	admitted, answered, failed := int64(0), 0, 0
	for range burst / 2 {
		d, err := take(patient, lost)
		if err != nil {
			t.Fatal(err)
		}
		admitted += d.Granted
	}
	c.Nodes[victim].Kill()
	if got := openURL(t, c.URL(), longTimeout).Warnings(); len(got) != 1 || !strings.Contains(got[0], c.Nodes[victim].Addr) {
		t.Errorf("opened without one node: got warnings %q, want one that names %s", got, c.Nodes[victim].Addr)
	}
	checkTakeAllChargesNothing(t, patient, kept, lost)
	c.AllowFailover(t)
	waitFor(t, "the shard answers again", func() bool {
		if _, err := take(patient, kept); err != nil {
			t.Errorf("a key of another shard: %v", err)
		}
		answered++
		d, err := take(quick, lost)
		if err != nil {
			failed++
			return false
		}
		admitted += d.Granted
		return true
	})
	admitted += checkNewOwnerFound(t, c, unaware, victim, lost)
	// The ID lets the store repeat the call on a connection that the killed node closed.
	rest := penstock.Request{Key: lost, Limit: slowLimits[2], Cost: 10 * burst, AtMost: true, ID: "rest"}
	d, err := patient.Take(t.Context(), rest)
	if err != nil {
		t.Fatal(err)
	}
	if admitted += d.Granted; admitted > 2*burst {
		t.Errorf("admitted %d, bound %d", admitted, 2*burst)
	}
	if !strings.Contains(mustCommand(t, c.Nodes[victim+shards], "CLUSTER", "NODES"), "fail") {
		t.Error("the replica does not consider the node failed")
	}
	t.Logf("%d calls of the lost shard failed, all %d of another were answered: admitted %d, bound %d", failed, answered, admitted, 2*burst)
}

// checkTakeAllChargesNothing runs TakeAll on two keys, one of them unavailable. The caller's
// deadline ends it, so that refunds have all the time of the store's timeout.
func checkTakeAllChargesNothing(t *testing.T, store *redisstore.Store, kept, lost string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	rs := []penstock.Request{{Key: kept, Limit: slowLimits[0], Cost: 1}, {Key: lost, Limit: slowLimits[0], Cost: 1}}
	if err := penstock.TakeAll(ctx, store, rs, make([]penstock.Decision, 2)); err == nil {
		t.Error("TakeAll with a key of a lost shard: got no error")
	}
	waitFor(t, "nothing is taken from the key of the other shard", func() bool {
		d, err := store.Take(t.Context(), penstock.Request{Key: kept, Limit: slowLimits[0]})
		if err != nil {
			t.Errorf("a peek at the key of the other shard: %v", err)
		}
		return d.Remaining == burst
	})
}
