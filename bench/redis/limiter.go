package main

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/redis/rueidis"
)

// A limiter decides through a client library, as a program would.
type limiter interface {
	take(ctx context.Context, key string) (ok bool, err error) // never ok with an error
	close()
}

// A benchLimit is so many units at once, of which one refills every so often.
type benchLimit struct {
	burst int64
	every time.Duration
}

// window is how long a burst takes to refill.
func (p benchLimit) window() time.Duration { return time.Duration(p.burst) * p.every }

var (
	ample = benchLimit{burst: 100_000, every: 36 * time.Second} // admits every call of a run
	once  = benchLimit{burst: 1, every: time.Hour}              // admits one
)

// A library opens a limiter.
type library struct {
	name   string
	module string // where it comes from
	perKey int    // keys in Redis for each key
	open   func(addr string, p benchLimit) (limiter, error)
}

var ours = library{"penstock token-bucket", "github.com/penstock-io/penstock", 1, openPenstock}

// ourWindows have no targets.
var ourWindows = []library{
	{"penstock fixed-window", "", 1, openPenstockWindow(penstock.FixedWindow)},
	{"penstock sliding-window", "", 1, openPenstockWindow(penstock.SlidingWindow)},
}

type penstockLimiter struct {
	store *redisstore.Store
	lim   *penstock.Limiter
}

func openPenstock(addr string, p benchLimit) (limiter, error) {
	return newPenstock(addr, penstock.Limit{Count: 1, Period: p.every, Burst: p.burst})
}

func openPenstockWindow(a penstock.Algorithm) func(string, benchLimit) (limiter, error) {
	return func(addr string, p benchLimit) (limiter, error) {
		return newPenstock(addr, penstock.Limit{Count: p.burst, Period: p.window(), Algorithm: a})
	}
}

// newPenstock opens the store with a deadline for every call, as by default.
func newPenstock(addr string, l penstock.Limit) (limiter, error) {
	store, err := redisstore.Open(context.Background(), "redis://"+addr, &redisstore.Options{Timeout: callTimeout})
	if err != nil {
		return nil, err
	}
	lim, err := penstock.New(store, l)
	return &penstockLimiter{store, lim}, err
}

// callTimeout is the deadline of a call. It is longer than the store's default because a
// busy machine may stop Redis for longer than that; a deadline costs the same whatever its length.
const callTimeout = time.Minute

func (l *penstockLimiter) take(ctx context.Context, key string) (bool, error) {
	d, err := l.lim.Allow(ctx, key)
	return err == nil && d.Allowed, err
}

func (l *penstockLimiter) close() { l.store.Close() }

// The floors are the least that a decision through a client can cost: a round trip, one
// that counts, and one that runs a script. None has a deadline.
var floors = []library{
	{"PING through rueidis", "github.com/redis/rueidis", 0, openFloor(pingShape())},
	{"INCR through rueidis", "", 1, openFloor(incrShape())},
	trivial,
}

var trivial = library{"trivial EVALSHA through rueidis", "", 0, openFloor(trivialShape())}

type floor struct {
	client rueidis.Client
	words  []string
}

func openFloor(s *shape) func(string, benchLimit) (limiter, error) {
	return func(addr string, _ benchLimit) (limiter, error) {
		client, err := connect(addr)
		if err != nil {
			return nil, err
		}
		f := &floor{client: client, words: s.words}
		if s.text != "" {
			err = client.Do(context.Background(), client.B().ScriptLoad().Script(s.text).Build()).Error()
		}
		return f, err
	}
}

func (f *floor) take(ctx context.Context, key string) (bool, error) {
	err := f.client.Do(ctx, f.command(key)).Error()
	return err == nil, err
}

func (f *floor) command(key string) rueidis.Completed {
	switch f.words[0] {
	case "PING":
		return f.client.B().Ping().Build()
	case "INCR":
		return f.client.B().Incr().Key(key).Build()
	}
	return f.client.B().Evalsha().Sha1(f.words[1]).Numkeys(1).Key(key).Build()
}

func (f *floor) close() { f.client.Close() }
