package redisstore_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// A clockTest has a store of its own on the server whose clock tests set, and looks at its keys.
type clockTest struct {
	*testing.T
	store  *redisstore.Store
	prefix string
	now    time.Time
}

func newClockTest(t *testing.T) *clockTest {
	tr := &clockTest{T: t, prefix: newPrefix()}
	tr.store = openFakeClock(t, redisstore.Options{Prefix: tr.prefix})
	tr.set(time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC))
	return tr
}

func (tr *clockTest) set(now time.Time) {
	tr.now = now
	fakeClockServer.Clock.Set(now)
}

func (tr *clockTest) wait(d time.Duration) { tr.set(tr.now.Add(d)) }

// storeKeys returns the names of the store's keys.
func (tr *clockTest) storeKeys() []string {
	tr.Helper()
	return keys(tr.T, fakeClockServer, tr.prefix)
}

func (tr *clockTest) command(words ...string) string {
	tr.Helper()
	answer, err := fakeClockServer.Command(words...)
	if err != nil {
		tr.Fatalf("%v: %v", words, err)
	}
	return answer
}

// eval runs a script.
func (tr *clockTest) eval(text string, keys []string, arg int64) {
	tr.Helper()
	words := append([]string{"EVAL", text, strconv.Itoa(len(keys))}, keys...)
	tr.command(append(words, fmt.Sprint(arg))...)
}

// number returns the answer to a command.
func (tr *clockTest) number(words ...string) int64 {
	tr.Helper()
	n, err := strconv.ParseInt(tr.command(words...), 10, 64)
	if err != nil {
		tr.Fatalf("%v: %v", words, err)
	}
	return n
}

// ttl returns the time to live of a key; it is negative without expiry.
func (tr *clockTest) ttl(key string) time.Duration {
	tr.Helper()
	return time.Duration(tr.number("PTTL", key)) * time.Millisecond
}

// request sends a request to the store.
func (tr *clockTest) request(r penstock.Request) penstock.Decision {
	tr.Helper()
	if r.Key == "" {
		r.Key = "key"
	}
	return take(tr.T, tr.store, r)
}
