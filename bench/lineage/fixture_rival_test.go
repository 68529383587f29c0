// Package lineage compares the store with the rate limiters that it learned from, for
// docs/lineage.md. Package rivalscripts has the script of each, with the same commands in the
// same order, flaws included. Where a rival is correct, the store decides the same; for
// each flaw there is a trace on which the rival is wrong and the store is not.
package lineage

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// fakeClockServer is a server whose clock the tests set. Those that do run one after the other.
var fakeClockServer *redistest.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	server, err := redistest.Start(redistest.Options{FakeClock: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Stop()
	fakeClockServer = server
	return m.Run()
}

// A rivalTest runs a rival and a store side by side on the fake clock.
type rivalTest struct {
	*testing.T
	store  *redisstore.Store
	prefix string
	now    time.Time // of the server and of callers with a correct clock
	random *rand.Rand
}

func newRivalTest(t *testing.T) *rivalTest {
	tr := &rivalTest{T: t, prefix: newPrefix()}
	tr.set(time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC))
	tr.store = tr.openAnother()
	seed := fixedseed.Seed()
	tr.random = rand.New(rand.NewPCG(seed, 0))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return tr
}

func (tr *rivalTest) set(now time.Time) {
	tr.now = now
	fakeClockServer.Clock.Set(now)
}

func (tr *rivalTest) wait(d time.Duration) { tr.set(tr.now.Add(d)) }

// openAnother opens the store of another process that shares the state.
func (tr *rivalTest) openAnother() *redisstore.Store {
	return openStore(tr.T, "unix://"+fakeClockServer.Socket, tr.prefix)
}

var prefixes atomic.Int64

// newPrefix returns a prefix that no other test uses.
func newPrefix() string { return fmt.Sprintf("t%04d-", prefixes.Add(1)) }

// openStore opens a store that the test closes. Its long timeout only detects hangs.
func openStore(t *testing.T, url, prefix string) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(t.Context(), url, &redisstore.Options{Prefix: prefix, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// key returns a name for a key of a rival.
func (tr *rivalTest) key(name string) string { return "foreign-" + tr.prefix + name }

func (tr *rivalTest) command(words ...any) string {
	tr.Helper()
	texts := make([]string, len(words))
	for i, word := range words {
		texts[i] = fmt.Sprint(word)
	}
	answer, err := fakeClockServer.Command(texts...)
	if err != nil {
		tr.Fatalf("%v: %v", words, err)
	}
	return answer
}

func (tr *rivalTest) number(words ...any) int64 {
	tr.Helper()
	n, err := strconv.ParseInt(tr.command(words...), 10, 64)
	if err != nil {
		tr.Fatalf("%v: %v", words, err)
	}
	return n
}

// ttl returns the time to live of a key; it is negative without expiry.
func (tr *rivalTest) ttl(key string) time.Duration {
	tr.Helper()
	return time.Duration(tr.number("PTTL", key)) * time.Millisecond
}

// storeKeys returns the names of the store's keys.
func (tr *rivalTest) storeKeys() []string {
	tr.Helper()
	return strings.Fields(tr.command("KEYS", tr.prefix+"*"))
}

func readRival(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("rivalscripts", name+".lua"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// eval runs a script.
func (tr *rivalTest) eval(text string, keys []string, args ...any) (string, error) {
	words := append([]string{"EVAL", text, strconv.Itoa(len(keys))}, keys...)
	for _, arg := range args {
		words = append(words, fmt.Sprint(arg))
	}
	return fakeClockServer.Command(words...)
}

// runRival runs the script of a rival by name.
func (tr *rivalTest) runRival(rival string, keys []string, args ...any) string {
	tr.Helper()
	answer, err := tr.eval(readRival(tr.T, rival), keys, args...)
	if err != nil {
		tr.Fatalf("%s on %q with %v: %v", rival, keys, args, err)
	}
	return answer
}

// request sends a request to the store.
func (tr *rivalTest) request(r penstock.Request) penstock.Decision {
	tr.Helper()
	if r.Key == "" {
		r.Key = "key"
	}
	d, err := tr.store.Take(context.Background(), r)
	if err != nil {
		tr.Fatalf("%+v: %v", r, err)
	}
	return d
}

// take takes one unit from the store.
func (tr *rivalTest) take(l penstock.Limit) penstock.Decision {
	tr.Helper()
	return tr.request(penstock.Request{Limit: l, Cost: 1})
}

// countAdmitted returns how many of n calls are admitted.
func countAdmitted(n int, admitted func() bool) (count int) {
	for range n {
		if admitted() {
			count++
		}
	}
	return count
}

// checkSame fails the test unless rival and store both grant want.
func (tr *rivalTest) checkSame(what string, rival, store, want int) {
	tr.Helper()
	tr.checkDiffer(what, rival, want, store, want)
}

// checkDiffer fails the test unless the rival is wrong as known and the store is right.
func (tr *rivalTest) checkDiffer(what string, rival, wrong, store, right int) {
	tr.Helper()
	if rival != wrong {
		tr.Errorf("%s: the rival grants %d, want %d", what, rival, wrong)
	}
	if store != right {
		tr.Errorf("%s: the store grants %d, want %d", what, store, right)
	}
}
