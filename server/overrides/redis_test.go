package overrides

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// redis is shared by the tests that need no server of their own.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{}, func(shared *redistest.Server) { redis = shared }))
}

var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprint("t", prefixes.Add(1)) }

// daemon returns a book on Redis, as a daemon has it. The test calls its sync.
func daemon(t testing.TB, server *redistest.Server, prefix, file string) *Book {
	t.Helper()
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{
		Prefix: prefix, Timeout: time.Minute, AllowUnavailable: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	b, err := Open(&Options{Redis: store, File: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func mustSync(t testing.TB, books ...*Book) {
	t.Helper()
	for _, b := range books {
		if err := b.redis.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func keysOf(b *Book) (text string) {
	for _, o := range b.List("", "") {
		text += o.Key + ":" + o.Limit + " "
	}
	return strings.TrimSpace(text)
}

func checkKeys(t testing.TB, want string, books ...*Book) {
	t.Helper()
	for i, b := range books {
		if got := keysOf(b); got != want {
			t.Errorf("daemon %d: got %q, want %q", i, got, want)
		}
	}
}

func TestRedisTellsEveryDaemon(t *testing.T) {
	prefix := newPrefix()
	a, b := daemon(t, redis, prefix, ""), daemon(t, redis, prefix, "")
	mustSync(t, a, b)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	mustSync(t, b)
	checkKeys(t, "k=1:ban k=2:ban", a, b)
	mustPut(t, b, limited("k=1", "unlimited"))
	if err := b.Delete(t.Context(), []Override{ban("k=2")}); err != nil {
		t.Fatal(err)
	}
	mustSync(t, a)
	checkKeys(t, "k=1:unlimited", a, b, daemonAfterSync(t, prefix))
}

func daemonAfterSync(t testing.TB, prefix string) *Book {
	t.Helper()
	b := daemon(t, redis, prefix, "")
	mustSync(t, b)
	return b
}

// One look at Redis brings all changes, and a look without changes brings nothing.
func TestRedisSendsOnlyChanges(t *testing.T) {
	prefix := newPrefix()
	a := daemonAfterSync(t, prefix)
	all := make([]Override, 1200)
	for i := range all {
		all[i] = ban(fmt.Sprint("k=", i))
	}
	mustPut(t, a, all...)
	b := daemonAfterSync(t, prefix)
	mustPut(t, b, ban("k=more"))
	reply, err := a.redis.eval(t.Context(), changesScript, a.redis.last, a.redis.lastText, "500")
	if err != nil || len(reply) != 5 || reply[3] != ":r\x00k=more" {
		t.Errorf("got %q %v, want one change", reply, err)
	}
	mustSync(t, a)
	if reply, err = a.redis.eval(t.Context(), changesScript, a.redis.last, a.redis.lastText, "500"); err != nil || len(reply) != 3 {
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
	if err := a.Delete(t.Context(), []Override{ban("k=2")}); err != nil {
		t.Fatal(err)
	}
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
	if err := a.Delete(t.Context(), []Override{ban("k=2")}); err != nil {
		t.Fatal(err)
	}
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
	if err := a.Delete(t.Context(), []Override{ban("k=1")}); err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return time.Now().Add(2 * retention) }
	a.purgeEverywhere(t.Context())
	if n := redistest.MustCommand(t, redis, "HEXISTS", prefix+":overrides", ":r\x00k=1"); n != "0" {
		t.Fatal("the deletion is still in the hash")
	}
	cutOff.redis.synced = false // as if the ring had gone around
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
	if err := a.Delete(t.Context(), []Override{ban("k=1")}); err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return time.Now().Add(2 * retention) }
	a.purgeEverywhere(t.Context())
	began := daemonAfterSync(t, prefix)
	redistest.MustCommand(t, redis, "DEL", prefix+":overrides")
	mustSync(t, began, cutOff, began)
	checkKeys(t, "k=2:ban", began, cutOff)
}

// A daemon whose clock is days ahead must not take overrides from the others that have not ended.
func TestRedisKeepsOverridesThatHaveNotEndedByItsClock(t *testing.T) {
	prefix := newPrefix()
	ahead := daemonAfterSync(t, prefix)
	ahead.now = func() time.Time { return time.Now().Add(3 * retention) }
	ended, later := ban("k=1"), ban("k=2")
	ended.Until, later.Until = time.Now().Add(-time.Second), time.Now().Add(retention)
	ended.Reason = `"until":9999999999999`
	mustPut(t, ahead, ended, later)
	ahead.purgeEverywhere(t.Context())
	if n := redistest.MustCommand(t, redis, "HEXISTS", prefix+":overrides", ":r\x00k=1"); n != "0" {
		t.Error("the hash has an override that ended long ago")
	}
	checkKeys(t, "k=2:ban", daemonAfterSync(t, prefix))
}

// usedOf returns when an override was last used by any daemon, as a daemon lists it.
func usedOf(t testing.TB, b *Book, key string) time.Time {
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
	var all []Override
	for i := range pageSize + 2 { // more than one script tells
		all = append(all, ban(fmt.Sprint("k=", i)))
	}
	mustPut(t, a, append(all, ban("k=never"), ban("k=net*"))...)
	mustSync(t, b)
	before := time.Now().Truncate(time.Second)
	for i := range all {
		a.Index("r").Find(all[i].Key)
	}
	a.Index("r").Find("k=network")
	a.tellUses(t.Context())
	for _, key := range []string{"k=0", all[len(all)-1].Key, "k=net*"} {
		if used := usedOf(t, b, key); used.Before(before) || used.After(time.Now()) {
			t.Errorf("%s was used at %v, want after %v", key, used, before)
		}
	}
	if used := usedOf(t, b, "k=never"); !used.IsZero() {
		t.Errorf("k=never was used at %v", used)
	}
	if uses := a.newUses(); len(uses) != 0 {
		t.Errorf("%d uses would be told twice", len(uses))
	}

	// A hash that was lost gets the uses back with the overrides, and one that is removed
	// leaves nothing behind.
	redistest.MustCommand(t, redis, "DEL", prefix+":overrides")
	mustSync(t, a, b)
	a.tellUses(t.Context())
	if used := usedOf(t, b, "k=0"); used.Before(before) {
		t.Errorf("k=0 was used at %v after the loss, want after %v", used, before)
	}
	if err := a.Delete(t.Context(), []Override{ban("k=0")}); err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return time.Now().Add(2 * retention) }
	a.purgeEverywhere(t.Context())
	mustSync(t, b)
	b.Index("r").Find("k=1")
	b.tellUses(t.Context())
	if n := redistest.MustCommand(t, redis, "HEXISTS", prefix+":overrides", "~r\x00k=0"); n != "0" {
		t.Error("the use of a removed override is still in the hash")
	}
}

// Uses are told once a minute, and when the daemon ends.
func TestRunTellsUses(t *testing.T) {
	prefix := newPrefix()
	a, b := daemonAfterSync(t, prefix), daemonAfterSync(t, prefix)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	mustSync(t, b)
	start, passed := time.Now(), atomic.Int64{}
	a.now, a.interval = func() time.Time { return start.Add(time.Duration(passed.Load())) }, time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(ended)
	}()
	a.Index("r").Find("k=1")
	redistest.WaitFor(t, "the use of k=1", func() bool {
		passed.Add(int64(tellInterval))
		return !usedOf(t, b, "k=1").IsZero()
	})
	cancel()
	<-ended
	a.Index("r").Find("k=2")
	redistest.WaitFor(t, "the use of k=2", func() bool { // a busy machine may exceed its time
		a.tellLastUses(ctx)
		return !usedOf(t, b, "k=2").IsZero()
	})
}

func TestRedisWithForeignUses(t *testing.T) {
	prefix := newPrefix()
	a := daemonAfterSync(t, prefix)
	mustPut(t, a, ban("k=1"))
	for text, known := range map[string]bool{"nonsense": false, "-5": false, "1e300": false, "4503599627370496": true, "17": true} {
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
	if err := a.redis.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("got %v, want WRONGTYPE", err)
	}
	if err := a.Put(t.Context(), []Override{ban("k=8")}); err == nil {
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
	a := daemon(t, server, "p", path)
	mustSync(t, a)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	server.Kill()
	restarted := daemon(t, server, "p", path)
	for _, b := range []*Book{a, restarted} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // until which calls are repeated
		defer cancel()
		if err := b.redis.sync(ctx); err == nil {
			t.Error("Redis is not down")
		}
		if err := b.Put(ctx, []Override{ban("k=3")}); err == nil {
			t.Error("put without Redis succeeded")
		}
		checkKeys(t, "k=1:ban k=2:ban", b)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the daemon reaches Redis", func() bool { return restarted.redis.sync(t.Context()) == nil })
	other := daemon(t, server, "p", "")
	mustSync(t, other)
	checkKeys(t, "k=1:ban k=2:ban", a, restarted, other)
}

// Three daemons follow Redis while overrides change and Redis is killed: in the end all
// have the same, none is lost, and none that was deleted is in force.
func TestDaemonsAgreeWhileRedisIsKilled(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{})
	var books []*Book
	for range 3 {
		b := daemon(t, server, "p", "")
		b.interval = 10 * time.Millisecond
		books = append(books, b)
		done := make(chan struct{})
		t.Cleanup(func() { <-done })
		go func() {
			defer close(done)
			b.Run(t.Context())
		}()
	}
	want := map[string]bool{}
	for i := range 60 {
		b, key := books[i%3], fmt.Sprint("k=", i%20)
		change := func() error { return b.Put(t.Context(), []Override{ban(key)}) }
		if want[key] = i%4 != 0; !want[key] {
			change = func() error {
				return b.write(t.Context(), []record{{Override: ban(key), deleted: true}}, nil)
			}
		}
		redistest.WaitFor(t, "a change", func() bool { return change() == nil })
		if i == 30 {
			// What one daemon has acknowledged and no other has seen would be lost
			// with that daemon alone.
			waitForAgreement(t, books, want)
			server.Kill()
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
		}
	}
	waitForAgreement(t, books, want)
}

func waitForAgreement(t *testing.T, books []*Book, want map[string]bool) {
	t.Helper()
	for _, b := range books {
		redistest.WaitFor(t, "agreement", func() bool {
			for key, banned := range want {
				if (patternOf(b, key) != "") != banned {
					return false
				}
			}
			return true
		})
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
		all := make([]Override, min(10_000, n-start))
		for i := range all {
			all[i] = limited(fmt.Sprint("user=", start+i), "600/1m")
		}
		mustPut(t, a, all...)
	}
	mustSync(t, b) // the changes are more than the ring has
	redistest.MustCommand(t, redis, "DEL", prefix+":overrides")
	mustSync(t, a)
	for _, b := range []*Book{a, b, daemonAfterSync(t, prefix)} {
		if got := b.Count(Limited); got != int64(n) {
			t.Errorf("%d overrides, want %d", got, n)
		}
	}
}

// Nor must it bring it back after a restart, from its file, while Redis is unavailable.
func TestRedisRemovesOverridesThatWereDeletedLongAgoFromTheFile(t *testing.T) {
	prefix, file := newPrefix(), filepath.Join(t.TempDir(), "overrides")
	a, cutOff := daemonAfterSync(t, prefix), daemon(t, redis, prefix, file)
	mustPut(t, a, ban("k=1"), ban("k=2"))
	mustSync(t, cutOff)
	if err := a.Delete(t.Context(), []Override{ban("k=1")}); err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return time.Now().Add(2 * retention) }
	a.purgeEverywhere(t.Context())
	cutOff.redis.synced = false // as if the ring had gone around
	mustSync(t, cutOff)
	if err := cutOff.Close(); err != nil {
		t.Fatal(err)
	}
	checkKeys(t, "k=2:ban", daemon(t, redis, prefix, file)) // which has not read Redis yet
}

// A daemon that forgot a ban, and could not remove it from Redis, can ban the key again.
func TestPenaltyAfterABanThatOnlyRedisRemembers(t *testing.T) {
	a := daemonAfterSync(t, newPrefix())
	old := ban("k=1")
	old.Until, old.Strikes = time.Now().Add(-2*retention), 1
	mustPut(t, a, old)
	unavailable, cancel := context.WithCancel(t.Context())
	cancel()
	a.purgeEverywhere(unavailable)
	if len(a.entries) != 0 {
		t.Fatal("the ban is not forgotten")
	}
	o := offence{rule: "r", key: "k=1", penalty: *harsh}
	a.ban(t.Context(), &o) // which finds the old one
	a.ban(t.Context(), &o)
	checkKeys(t, "k=1:ban", a)
}
