package redishash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/overrides"
)

// redis is shared by the tests that need no server of their own.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{}, func(shared *redistest.Server) { redis = shared }))
}

var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprint("t", prefixes.Add(1)) }

// A daemon has a set of overrides that follows the hash. The test calls its sync, and may move its clock.
type daemon struct {
	*overrides.Set
	hash  *Hash
	ahead atomic.Int64 // nanoseconds
}

func newDaemon(t testing.TB, server *redistest.Server, prefix, file string) *daemon {
	t.Helper()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{
		Prefix: prefix, Timeout: time.Minute, AllowUnavailable: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	d := &daemon{hash: New(store, nil)}
	d.Set, err = overrides.Open(&overrides.Options{
		Shared: d.hash, File: file, Interval: 10 * time.Millisecond,
		Now: func() time.Time { return time.Now().Add(time.Duration(d.ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func (d *daemon) sync(ctx context.Context) error { return d.hash.Sync(ctx, d.Set) }

func mustSync(t testing.TB, daemons ...*daemon) {
	t.Helper()
	for _, d := range daemons {
		if err := d.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func ban(key string) overrides.Override { return limited(key, "ban") }

func limited(key, limit string) overrides.Override {
	return overrides.Override{Rule: "r", Key: key, Limit: limit}
}

func mustPut(t testing.TB, d *daemon, all ...overrides.Override) {
	t.Helper()
	if err := d.Put(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

func mustDelete(t testing.TB, d *daemon, key string) {
	t.Helper()
	if err := d.Delete(t.Context(), []overrides.Override{ban(key)}); err != nil {
		t.Fatal(err)
	}
}

// muchLater is when a set forgets what ended today.
const muchLater = 48 * time.Hour

// changes returns the changes that the daemon has not seen.
func (d *daemon) changes(t testing.TB) ([]string, error) {
	return d.hash.eval(t.Context(), changesScript, d.hash.seen.number, d.hash.seen.text, "500")
}

func keysOf(b *daemon) (text string) {
	for _, o := range b.List("", "") {
		text += o.Key + ":" + o.Limit + " "
	}
	return strings.TrimSpace(text)
}

func checkKeys(t testing.TB, want string, daemons ...*daemon) {
	t.Helper()
	for i, b := range daemons {
		if got := keysOf(b); got != want {
			t.Errorf("daemon %d: got %q, want %q", i, got, want)
		}
	}
}

func TestRedisTellsEveryDaemon(t *testing.T) {
	prefix := newPrefix()
	a, b := newDaemon(t, redis, prefix, ""), newDaemon(t, redis, prefix, "")
	mustSync(t, a, b)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	mustSync(t, b)
	checkKeys(t, "k=1:ban k=2:ban", a, b)
	mustPut(t, b, limited("k=1", "unlimited"))
	mustDelete(t, b, "k=2")
	mustSync(t, a)
	checkKeys(t, "k=1:unlimited", a, b, daemonAfterSync(t, prefix))
}

func daemonAfterSync(t testing.TB, prefix string) *daemon {
	t.Helper()
	b := newDaemon(t, redis, prefix, "")
	mustSync(t, b)
	return b
}

// One look at Redis brings all changes, and a look without changes brings nothing.
func TestRedisSendsOnlyChanges(t *testing.T) {
	prefix := newPrefix()
	a := daemonAfterSync(t, prefix)
	all := make([]overrides.Override, 1200)
	for i := range all {
		all[i] = ban(fmt.Sprint("k=", i))
	}
	mustPut(t, a, all...)
	b := daemonAfterSync(t, prefix)
	mustPut(t, b, ban("k=more"))
	reply, err := a.changes(t)
	if err != nil || len(reply) != 5 || reply[3] != ":r\x00k=more" {
		t.Errorf("got %q %v, want one change", reply, err)
	}
	mustSync(t, a)
	if reply, err = a.changes(t); err != nil || len(reply) != 3 {
		t.Errorf("got %q %v, want no change", reply, err)
	}
	if len(a.List("", "")) != 1201 {
		t.Errorf("%d overrides, want 1201", len(a.List("", "")))
	}
}

func TestRedisThatLostTheHashGetsItBack(t *testing.T) {
	prefix := newPrefix()
	a, b := daemonAfterSync(t, prefix), daemonAfterSync(t, prefix)
	mustPut(t, a, ban("k=1"), ban("k=2"), ban("k=3"))
	mustSync(t, b)
	mustPut(t, a, limited("k=1", "10/1m")) // b does not know this version
	mustDelete(t, a, "k=2")
	redistest.MustCommand(t, redis, "DEL", prefix+":overrides")
	mustPut(t, daemonAfterSync(t, prefix), ban("k=4")) // a daemon that knew none
	mustSync(t, b)                                     // writes back what is older
	mustSync(t, a, b)
	checkKeys(t, "k=1:10/1m k=3:ban k=4:ban", a, b, daemonAfterSync(t, prefix))
}

// After a failover to a replica that lacks the latest changes, new changes may bring the
// count of changes to where a daemon left it.
func TestRedisThatLostTheLastChangesGetsThemBack(t *testing.T) {
	prefix := newPrefix()
	a := daemonAfterSync(t, prefix)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	before := redistest.MustCommand(t, redis, "COPY", prefix+":overrides", prefix+":replica")
	if before != "1" {
		t.Fatal("not copied")
	}
	mustPut(t, a, ban("k=3"))
	mustDelete(t, a, "k=2")
	redistest.MustCommand(t, redis, "RENAME", prefix+":replica", prefix+":overrides")
	b := daemonAfterSync(t, prefix)
	mustPut(t, b, ban("k=5"), ban("k=6"))
	checkKeys(t, "k=1:ban k=2:ban k=5:ban k=6:ban", b)
	mustSync(t, a, b)
	checkKeys(t, "k=1:ban k=3:ban k=5:ban k=6:ban", a, b)
}

// A daemon that was cut off while an override was deleted, and while the deletion was
// forgotten, must not bring it back.
func TestRedisRejectsOverridesThatWereDeletedLongAgo(t *testing.T) {
	prefix := newPrefix()
	a, cutOff := daemonAfterSync(t, prefix), daemonAfterSync(t, prefix)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	mustSync(t, cutOff)
	mustDelete(t, a, "k=1")
	a.ahead.Store(int64(muchLater))
	a.Purge(t.Context())
	if n := redistest.MustCommand(t, redis, "HEXISTS", prefix+":overrides", ":r\x00k=1"); n != "0" {
		t.Fatal("the deletion is still in the hash")
	}
	cutOff.hash.synced = false // as if the ring had gone around
	mustSync(t, cutOff)
	mustSync(t, a)
	checkKeys(t, "k=2:ban", a, cutOff)
}

// Nor must it if Redis has lost everything since, and a daemon that began after the deletion was
// forgotten has written the others back.
func TestRedisRejectsOverridesThatWereDeletedBeforeItLostTheHash(t *testing.T) {
	prefix := newPrefix()
	a, cutOff := daemonAfterSync(t, prefix), daemonAfterSync(t, prefix)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	mustSync(t, cutOff)
	mustDelete(t, a, "k=1")
	a.ahead.Store(int64(muchLater))
	a.Purge(t.Context())
	began := daemonAfterSync(t, prefix)
	redistest.MustCommand(t, redis, "DEL", prefix+":overrides")
	mustSync(t, began, cutOff, began)
	checkKeys(t, "k=2:ban", began, cutOff)
}

// A daemon whose clock is days ahead must not take overrides from the others that have not ended.
func TestRedisKeepsOverridesThatHaveNotEndedByItsClock(t *testing.T) {
	prefix := newPrefix()
	ahead := daemonAfterSync(t, prefix)
	ahead.ahead.Store(int64(72 * time.Hour))
	ended, later := ban("k=1"), ban("k=2")
	ended.Until, later.Until = time.Now().Add(-time.Second), time.Now().Add(24*time.Hour)
	ended.Reason = `"until":9999999999999`
	mustPut(t, ahead, ended, later)
	ahead.Purge(t.Context())
	if n := redistest.MustCommand(t, redis, "HEXISTS", prefix+":overrides", ":r\x00k=1"); n != "0" {
		t.Error("the hash has an override that ended long ago")
	}
	checkKeys(t, "k=2:ban", daemonAfterSync(t, prefix))
}

// usedOf returns when an override was last used by any daemon, as a daemon lists it.
func usedOf(t testing.TB, b *daemon, key string) time.Time {
	t.Helper()
	list := b.List("r", key)
	if len(list) != 1 {
		t.Fatalf("%s: %d overrides", key, len(list))
	}
	b.AddUses(t.Context(), list)
	return list[0].Used
}

// A daemon lists an override that only another one uses with the time of that use.
func TestRedisTellsWhenAnOverrideWasUsedByAnyDaemon(t *testing.T) {
	prefix := newPrefix()
	a, b := daemonAfterSync(t, prefix), daemonAfterSync(t, prefix)
	var all []overrides.Override
	for i := range pageSize + 2 { // more than one script takes
		all = append(all, ban(fmt.Sprint("k=", i)))
	}
	mustPut(t, a, append(all, ban("k=never"), ban("k=net*"))...)
	mustSync(t, b)
	before := time.Now().Truncate(time.Second)
	for i := range all {
		a.Index("r").Find(all[i].Key)
	}
	a.Index("r").Find("k=network")
	a.WriteUses(t.Context())
	for _, key := range []string{"k=0", all[len(all)-1].Key, "k=net*"} {
		if used := usedOf(t, b, key); used.Before(before) || used.After(time.Now()) {
			t.Errorf("%s was used at %v, want after %v", key, used, before)
		}
	}
	if used := usedOf(t, b, "k=never"); !used.IsZero() {
		t.Errorf("k=never was used at %v", used)
	}

	// A hash that was lost gets the uses back with the overrides, and one that is removed
	// leaves nothing behind.
	redistest.MustCommand(t, redis, "DEL", prefix+":overrides")
	mustSync(t, a, b)
	a.WriteUses(t.Context())
	if used := usedOf(t, b, "k=0"); used.Before(before) {
		t.Errorf("k=0 was used at %v after the loss, want after %v", used, before)
	}
	mustDelete(t, a, "k=0")
	a.ahead.Store(int64(muchLater))
	a.Purge(t.Context())
	mustSync(t, b)
	b.Index("r").Find("k=1")
	b.WriteUses(t.Context())
	if n := redistest.MustCommand(t, redis, "HEXISTS", prefix+":overrides", "~r\x00k=0"); n != "0" {
		t.Error("the use of a removed override is still in the hash")
	}
}

// Uses are written once a minute, and when the daemon ends.
func TestRunWritesUses(t *testing.T) {
	prefix := newPrefix()
	a, b := daemonAfterSync(t, prefix), daemonAfterSync(t, prefix)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	mustSync(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(ended)
	}()
	a.Index("r").Find("k=1")
	redistest.WaitFor(t, "the use of k=1", func() bool {
		a.ahead.Add(int64(time.Minute))
		return !usedOf(t, b, "k=1").IsZero()
	})
	cancel()
	<-ended
	a.Index("r").Find("k=2")
	redistest.WaitFor(t, "the use of k=2", func() bool { // a busy machine may exceed its time
		a.Run(ctx) // which has ended
		return !usedOf(t, b, "k=2").IsZero()
	})
}

func TestRedisWithForeignUses(t *testing.T) {
	prefix := newPrefix()
	a := daemonAfterSync(t, prefix)
	mustPut(t, a, ban("k=1"))
	for text, known := range map[string]bool{"nonsense": false, "-5": false, "1e300": false, "4503599627370496": true, "17": false} {
		redistest.MustCommand(t, redis, "HSET", prefix+":overrides", "~r\x00k=1", text)
		if used := usedOf(t, a, "k=1"); used.IsZero() == known || used.After(time.Now()) {
			t.Errorf("%s: used at %v", text, used)
		}
	}
}

func TestRedisWithForeignValues(t *testing.T) {
	prefix := newPrefix()
	hash := prefix + ":overrides"
	for field, value := range map[string]string{
		"s": "nonsense", "v": "1e300", "h": "-5", "@0": "x", ":r\x00k=1": "17", ":r\x00k=2": "9223372036854775807 {\"limit\":\"ban\"}",
		":r\x00k=3": "17 {\"limit\":\"1000\"}", ":r\x00": "17 {\"limit\":\"ban\"}", ":k=4": "17 {\"limit\":\"ban\"}", "other": "1",
		":r\x00k=5": "17 {\"limit\":\"ban\",\"reason\":\"" + strings.Repeat("x", 300) + "\"}",
		":r\x00k=6": "17 {\"limit\":\"ban\",\"reason\":\"" + strings.Repeat("x", 1<<20) + "\"}",
		":r\x00k=7": "17 {\"limit\":\"ban\"}",
	} {
		redistest.MustCommand(t, redis, "HSET", hash, field, value)
	}
	a := daemonAfterSync(t, prefix)
	checkKeys(t, "k=7:ban", a)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	b := daemonAfterSync(t, prefix)
	checkKeys(t, "k=1:ban k=2:ban k=7:ban", a, b)

	redistest.MustCommand(t, redis, "SET", hash, "text")
	if err := a.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("got %v, want WRONGTYPE", err)
	}
	if err := a.Put(t.Context(), []overrides.Override{ban("k=8")}); err == nil {
		t.Error("put in a text succeeded")
	}
	checkKeys(t, "k=1:ban k=2:ban k=7:ban", a)
	redistest.MustCommand(t, redis, "DEL", hash)
	mustSync(t, a)
	checkKeys(t, "k=1:ban k=2:ban k=7:ban", a, daemonAfterSync(t, prefix))
}

func TestRedisDownKeepsTheLastKnownAlsoOverARestart(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{})
	path := filepath.Join(t.TempDir(), "overrides")
	a := newDaemon(t, server, "p", path)
	mustSync(t, a)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	server.Kill()
	restarted := newDaemon(t, server, "p", path)
	for _, b := range []*daemon{a, restarted} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // until which calls are repeated
		defer cancel()
		if err := b.sync(ctx); err == nil {
			t.Error("Redis is not down")
		}
		if err := b.Put(ctx, []overrides.Override{ban("k=3")}); err == nil {
			t.Error("put without Redis succeeded")
		}
		checkKeys(t, "k=1:ban k=2:ban", b)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the daemon reaches Redis", func() bool { return restarted.sync(t.Context()) == nil })
	other := newDaemon(t, server, "p", "")
	mustSync(t, other)
	checkKeys(t, "k=1:ban k=2:ban", a, restarted, other)
}

// Three daemons follow Redis while overrides change and Redis is killed: in the end all
// have the same, none is lost, and none that was deleted is in force.
func TestDaemonsAgreeWhileRedisIsKilled(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{})
	var daemons []*daemon
	for range 3 {
		d := newDaemon(t, server, "p", "")
		daemons = append(daemons, d)
		done := make(chan struct{})
		t.Cleanup(func() { <-done })
		go func() {
			defer close(done)
			d.Run(t.Context())
		}()
	}
	want := map[string]bool{}
	for i := range 80 {
		d, key := daemons[i%3], fmt.Sprint("k=", i%20)
		change := d.Put
		if i%4 == 0 && want[key] {
			change = d.Delete // repeated until the daemon knows of the override
		}
		want[key] = !want[key] || i%4 != 0
		redistest.WaitFor(t, "a change", func() bool {
			return change(t.Context(), []overrides.Override{ban(key)}) == nil
		})
		if i == 30 {
			// What one daemon has acknowledged and no other has seen would be lost
			// with that daemon alone.
			waitForAgreement(t, daemons, want)
			server.Kill()
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
		}
	}
	waitForAgreement(t, daemons, want)
}

func waitForAgreement(t *testing.T, daemons []*daemon, want map[string]bool) {
	t.Helper()
	for _, d := range daemons {
		redistest.WaitFor(t, "agreement", func() bool {
			for key, banned := range want {
				if (d.Get("r", key) != nil) != banned {
					return false
				}
			}
			return true
		})
	}
}

// A script stops Redis for all daemons, so many records are written by several.
func TestManyOverridesAreWrittenInPages(t *testing.T) {
	a := daemonAfterSync(t, newPrefix())
	redistest.MustCommand(t, redis, "CONFIG", "RESETSTAT")
	var all []overrides.Override
	for i := range 9 * pageSize {
		all = append(all, ban(fmt.Sprint("k=", i)))
	}
	mustPut(t, a, all...)
	calls := regexp.MustCompile(`cmdstat_eval(sha)?:calls=(\d+)`).FindAllStringSubmatch(redistest.MustCommand(t, redis, "INFO", "commandstats"), -1)
	scripts := 0
	for _, c := range calls {
		n, _ := strconv.Atoi(c[2])
		scripts += n
	}
	if scripts < 2*9 || a.Count(overrides.Banned) != int64(len(all)) { // to write, and to read what has changed
		t.Errorf("%d scripts wrote and read %d overrides, want 500 in each", scripts, a.Count(overrides.Banned))
	}
}

func TestManyOverridesReachAnotherDaemon(t *testing.T) {
	n := 17_000 // more than the ring of changes has
	if testing.Short() {
		n = 2_000
	}
	prefix := newPrefix()
	a, b := daemonAfterSync(t, prefix), daemonAfterSync(t, prefix)
	for start := 0; start < n; start += 10_000 {
		all := make([]overrides.Override, min(10_000, n-start))
		for i := range all {
			all[i] = limited(fmt.Sprint("user=", start+i), "600/1m")
		}
		mustPut(t, a, all...)
	}
	mustSync(t, b) // the changes are more than the ring has
	redistest.MustCommand(t, redis, "DEL", prefix+":overrides")
	mustSync(t, a)
	for _, b := range []*daemon{a, b, daemonAfterSync(t, prefix)} {
		if got := b.Count(overrides.Limited); got != int64(n) {
			t.Errorf("%d overrides, want %d", got, n)
		}
	}
}

// Nor must it bring it back after a restart, from its file, while Redis is unavailable.
func TestRedisRemovesOverridesThatWereDeletedLongAgoFromTheFile(t *testing.T) {
	prefix, file := newPrefix(), filepath.Join(t.TempDir(), "overrides")
	a, cutOff := daemonAfterSync(t, prefix), newDaemon(t, redis, prefix, file)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	mustSync(t, cutOff)
	mustDelete(t, a, "k=1")
	a.ahead.Store(int64(muchLater))
	a.Purge(t.Context())
	cutOff.hash.synced = false // as if the ring had gone around
	mustSync(t, cutOff)
	if err := cutOff.Close(); err != nil {
		t.Fatal(err)
	}
	checkKeys(t, "k=2:ban", newDaemon(t, redis, prefix, file)) // which has not read Redis yet
}

// strict bans a key that is denied once.
var strict = &rules.Penalty{After: 1, Within: time.Minute, For: time.Minute, UpTo: time.Hour}

// penalize makes a daemon ban a key.
func (d *daemon) penalize(t testing.TB, key string) {
	d.CountDenial("r", key, strict)
	d.BanOffenders(t.Context())
}

// A daemon that forgot a ban, and could not remove it from Redis, can ban the key again.
func TestPenaltyAfterABanThatOnlyRedisRemembers(t *testing.T) {
	a := daemonAfterSync(t, newPrefix())
	old := ban("k=1")
	old.Until, old.Strikes = time.Now().Add(-muchLater), 1
	mustPut(t, a, old)
	unavailable, cancel := context.WithCancel(t.Context())
	cancel()
	a.Purge(unavailable)
	if a.Count(overrides.Banned) != 0 {
		t.Fatal("the ban is not forgotten")
	}
	a.penalize(t, "k=1") // which finds the old one
	a.penalize(t, "k=1")
	checkKeys(t, "k=1:ban", a)
}

// Two daemons that find the same offender set one ban, and the second does not double it.
func TestPenaltyOfTwoDaemonsIsOneBan(t *testing.T) {
	prefix := newPrefix()
	a, b := daemonAfterSync(t, prefix), daemonAfterSync(t, prefix)
	a.penalize(t, "k=1")
	b.penalize(t, "k=1") // which does not know of the ban yet
	mustSync(t, a, b)
	for _, d := range []*daemon{a, b} {
		if got := d.List("", ""); len(got) != 1 || got[0].Strikes != 1 {
			t.Errorf("got %+v, want one ban", got)
		}
	}
}

// An error of a later page does not say that nothing is in force.
func TestErrorAfterWrittenPageLeavesOpenWhatIsInForce(t *testing.T) {
	a := daemonAfterSync(t, newPrefix())
	var all []overrides.Record
	for i := range pageSize + 1 {
		all = append(all, overrides.Record{Override: ban(fmt.Sprint("k=", i)), Replaces: new(int64)})
	}
	mustPut(t, a, all[pageSize].Override) // so that its version is not the expected one
	if err := a.hash.Write(t.Context(), a.Set, all); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("got %v, want %v: a page was written", err, penstock.ErrUnavailable)
	}
	if err := a.hash.Write(t.Context(), a.Set, all[pageSize:]); !errors.Is(err, overrides.ErrConflict) || errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("got %v, want %v: nothing was written", err, overrides.ErrConflict)
	}
}

func TestScriptsPassCheckOfProxies(t *testing.T) {
	for _, s := range []*redisstore.Script{putScript, changesScript, scanScript, mergeScript, purgeScript, useScript, usesScript} {
		if refusal := redisproxy.CheckScript(s.Text, 60); refusal != "" {
			t.Errorf("%s: %s", s.Name, refusal)
		}
	}
}
