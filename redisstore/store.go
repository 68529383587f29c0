// Package redisstore is the store on Redis: any number of processes share one
// limit, and none of them can exceed it, whatever their clocks say.
//
//	store, err := redisstore.Open(ctx, "redis://localhost:6379", nil)
//	…
//	lim, err := penstock.New(store, penstock.PerMinute(30).WithBurst(15))
//
// It decides as [penstock.Memory] does, field by field, by Redis's clock and in
// steps of one millisecond. A decision is one script, and so one trip; a denial
// writes nothing. Requests that are made at the same time, under one limit and for
// the same cost, share a script, but not in a Cluster. [penstock.TakeEach] is one trip
// for all, and [penstock.TakeAll] one script: see [Store.TakeAll] for what that means in
// a Cluster.
//
// # State
//
// Every key that is written expires, at the latest some time after its state has
// ceased to matter. A key that is gone is as good as new, so a Redis that evicts
// keys gives units back: use maxmemory-policy noeviction, and look at
// [Store.Warnings].
//
// # When Redis does not answer
//
// A call ends after Options.Timeout at the latest. If it was not decided by then, its
// error is [penstock.ErrUnavailable], and what it asked for may have been charged all
// the same; under a Request.ID it can be asked again. [penstock.WithFallback] decides
// such calls by itself, and with Options.AllowUnavailable Redis need not be there at the start.
//
// # Redis
//
// It must be Redis 7 or later, or what speaks its protocol as well. A user must be
// permitted hello, eval, evalsha, time, pttl, get, set, incrby and del, for keys
// that begin with the prefix; in a Cluster also cluster|slots, cluster|shards and
// asking, and where there are sentinels role. With info and ping too, the checks
// on connecting can be made, and idle connections be watched; and scripts are shared,
// for what does not say in INFO what it is may be several servers.
//
// Behind a proxy that spreads keys over several servers, a script goes where its
// first key is. If it answers INFO as one server would, go through [New] with a
// [Client] that says that it is sharded.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// Options are the settings of a [Store]. The zero value is good for nearly
// everyone.
type Options struct {
	// Prefix begins the name of every key in Redis. Stores with different
	// prefixes share nothing. Letters, digits and : _ - / only. Default: "p".
	Prefix string

	// Timeout is how long a call may take, whatever the caller's context says;
	// retries included. Default: 50 milliseconds.
	Timeout time.Duration

	// MaxCalls is how many calls may be under way at once, at most 65536, where
	// those that share a script are one. Further ones wait for their turn,
	// within their timeout. Default: 2048.
	MaxCalls int

	// AllowUnavailable lets [Open] return a store though nobody answers yet, for those
	// who go on without it, as with [penstock.WithFallback]. Calls fail at once
	// until somebody does, and have it tried again. What will not pass by itself,
	// such as a wrong password, is an error all the same.
	AllowUnavailable bool

	// connTimeout is how long a connection may take to answer. Tests that are not
	// about silent connections raise it. Default: defaultConnTimeout.
	connTimeout time.Duration
}

const (
	defaultPrefix   = "p"
	defaultTimeout  = 50 * time.Millisecond
	defaultMaxCalls = 2048
	maxMaxCalls     = 1 << 16 // for which each connection has a place, of some hundred bytes
)

// withDefaults returns the options with their defaults filled in, or an error
// that names the field that cannot be used.
func (o *Options) withDefaults() (Options, error) {
	var n Options
	if o != nil {
		n = *o
	}
	if n.Prefix == "" {
		n.Prefix = defaultPrefix
	}
	if n.Timeout == 0 {
		n.Timeout = defaultTimeout
	}
	if n.MaxCalls == 0 {
		n.MaxCalls = defaultMaxCalls
	}
	if n.connTimeout == 0 {
		n.connTimeout = defaultConnTimeout
	}
	switch {
	case strings.ContainsFunc(n.Prefix, invalidInPrefix):
		return n, fmt.Errorf("redisstore: Options.Prefix %q: want letters, digits and : _ - / only", n.Prefix)
	case n.Timeout < 0:
		return n, fmt.Errorf("redisstore: Options.Timeout %v: must not be negative", n.Timeout)
	case n.MaxCalls < 0 || n.MaxCalls > maxMaxCalls:
		return n, fmt.Errorf("redisstore: Options.MaxCalls %d: want from 1 to %d", n.MaxCalls, maxMaxCalls)
	}
	return n, nil
}

func invalidInPrefix(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune(":_-/", r)
}

// A Store keeps the state of keys in Redis. It is safe for concurrent use.
type Store struct {
	client      Client
	prefix      string
	timeout     time.Duration
	inflight    *inflightLimiter
	limits      limitCache
	clockOffset atomic.Int64 // how far Redis's clock is ahead of ours, in ticks
	batchingOff atomic.Bool  // whether one script may not be about several keys
	warnings    atomic.Pointer[[]string]
	now         func() time.Time // only the search for the clock of Redis depends on it
	close       func()
}

// nowMillis returns the time of this process, in ticks.
func (s *Store) nowMillis() int64 { return s.now().UnixMilli() }

// defaultConnTimeout is how long a connection may take to answer. It is given up after
// twice that: it is asked first whether it is still there.
const defaultConnTimeout = time.Second

// New returns a store that goes through a client that the caller has, and that
// the caller closes. Nil options are all defaults.
func New(client Client, o *Options) (*Store, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if client == nil {
		return nil, fmt.Errorf("redisstore: no client: want one, or a URL for Open")
	}
	s := newStore(client, opts)
	infos, err := client.Info(ctx)
	if err == nil {
		err = s.inspect(infos)
	}
	if err != nil {
		return nil, fmt.Errorf("redisstore: %w: connect: %w", penstock.ErrUnavailable, err)
	}
	return s, nil
}

// connectTimeout is how long connecting and the checks may take together.
const connectTimeout = 5 * time.Second

func newStore(client Client, o Options) *Store {
	s := &Store{
		client:   client,
		prefix:   o.Prefix,
		timeout:  o.Timeout,
		inflight: newInflightLimiter(o.MaxCalls, 2*o.connTimeout),
		now:      time.Now,
		close:    func() {},
	}
	s.batchingOff.Store(client.Sharded())
	return s
}

// Close closes the connections that Open has opened. Calls under way fail, and so
// do all that come later. A second Close does nothing.
func (s *Store) Close() { s.close() }

// errClosed means that there is nobody to ask any more.
var errClosed = errors.New("the store is closed")

// Warnings returns what was found on connecting that makes the promises of a
// limit weaker, in sentences for whoever runs Redis. None is good.
func (s *Store) Warnings() []string {
	if all := s.warnings.Load(); all != nil {
		return slices.Clone(*all)
	}
	return nil
}

// A pendingTake is one request under way.
type pendingTake struct {
	request compiledRequest
	calls   [1]Call
	keys    [2]string
	args    [12]string
	reply   [8]int64

	// For a trip in company:
	ctx   context.Context
	start time.Time
	done  chan struct{}
	alone bool // whether it has to be made again, alone
	err   error
}

var pendingTakePool = sync.Pool{New: func() any { return newPendingTake() }}

func newPendingTake() *pendingTake {
	t := &pendingTake{done: make(chan struct{}, 1)}
	t.calls[0] = Call{Keys: t.keys[:0], Reply: t.reply[:0], argsBuf: t.args[:0]}
	return t
}

// Take decides one request, in one trip. It may share that with others.
func (s *Store) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	t := pendingTakePool.Get().(*pendingTake)
	if err := s.encodeKeys(&t.request, &t.calls[0], &r, always); err != nil {
		return penstock.Decision{}, err
	}
	decision, err := s.submit(ctx, t)
	if err == nil { // otherwise somebody may still be writing into it
		t.ctx = nil
		pendingTakePool.Put(t)
	}
	return decision, err
}

// always is for how long a grant under an ID is remembered: as long as the limit
// says.
const always = time.Duration(math.MaxInt64)

// takeAlone decides one request by itself.
func (s *Store) takeAlone(d *deadline, r *penstock.Request, memory time.Duration) (penstock.Decision, error) {
	t := pendingTakePool.Get().(*pendingTake)
	if err := s.encodeKeys(&t.request, &t.calls[0], r, memory); err != nil {
		return penstock.Decision{}, err
	}
	decision, err := s.sendAlone(d, t)
	if err == nil {
		pendingTakePool.Put(t) // see Take
	}
	return decision, err
}

// maxClockAttempts is how often a question is posed when the server's clock keeps being
// elsewhere.
const maxClockAttempts = 3

// sendAlone takes one trip, or more if the server's clock has to be found first.
func (s *Store) sendAlone(d *deadline, t *pendingTake) (none penstock.Decision, err error) {
	q, c := &t.request, &t.calls[0]
	for range maxClockAttempts {
		s.encodeArgs(q, c)
		s.roundTrip(d, t.calls[:])
		if c.Err != nil {
			return none, s.callError(d, c)
		}
		decision, ok, err := s.decode(q, c)
		if ok || err != nil {
			return decision, err
		}
	}
	return none, c.wrapError(errClockChanged)
}

// errClockChanged means that what was asked about windows of a calendar was never asked
// about the right ones.
var errClockChanged = fmt.Errorf("%w: the server's clock does not stay in one place", penstock.ErrUnavailable)

var (
	_ penstock.BatchStore   = (*Store)(nil)
	_ penstock.AtomicStore  = (*Store)(nil)
	_ penstock.ShardedStore = (*Store)(nil)
	_ penstock.TimeoutStore = (*Store)(nil)
)
