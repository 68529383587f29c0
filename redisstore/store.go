// Package redisstore is the store on Redis: any number of processes share one
// limit and never exceed it, whatever their clocks say.
//
//	store, err := redisstore.Open(ctx, "redis://localhost:6379", nil)
//	…
//	lim, err := penstock.New(store, penstock.PerMinute(30).WithBurst(15))
//
// It makes the same decisions as [penstock.Memory], field by field, by the clock of
// Redis and in steps of one millisecond. A decision is one script and one round trip;
// a denial writes nothing. Concurrent requests under one limit and for the same cost, or
// under IDs, are batched into one script, except in a Cluster, and so are concurrent calls of
// [penstock.TakeAll], or of [penstock.TakeEach], under limits of the same
// algorithms. TakeEach is one round trip for all requests, and TakeAll is one script; see
// [Store.TakeAll] for Clusters.
//
// # State
//
// Every key that is written has an expiry, so idle keys disappear. A missing key
// counts as full. A Redis that evicts keys therefore hands out units twice: use
// maxmemory-policy noeviction, and check [Store.Warnings].
//
// # When Redis does not answer
//
// Redis has [Options].Timeout to answer a call. If it answered nothing by then, the error is
// [penstock.ErrUnavailable]; if it only answered others, the call waits, and ends after 20 timeouts with
// [penstock.ErrBusy].
//
// A call is repeated within its timeout if it certainly was not executed: Redis
// rejected it, it could not be sent, or its connection was found closed before it was
// sent. A request with an ID is repeated after any failure, because it is charged
// once. Every other call that gets no answer, such as one in flight when a server
// dies or closes the connection, may have been executed: it is not repeated, its
// error is returned, and its units may have been charged.
//
// [penstock.WithFallback] decides such calls locally. With Options.AllowUnavailable
// Redis may be down at the start.
//
// # Redis
//
// The store needs Redis 6 or later, or a compatible server. Its user needs the
// commands hello, eval, evalsha, time, pttl, get, set, incrby and del on keys that begin with
// the prefix, for IDs pexpiretime, or before Redis 6.2 pexpireat, and for permits append and
// setrange; in a Cluster also cluster|slots, cluster|shards and asking, and with Sentinel also role.
// With info and ping, Open can check the server and idle connections are monitored; with
// script|load, Open loads the scripts. It needs neither, nor hello, if the server lacks it.
//
// A proxy that spreads keys over several servers sends a script to the server of its first key, and may not
// look at the others. So the store tries out which keys can share a script, with a few keys that begin with
// PREFIX: and are deleted at once: when it connects, when it connects again after a connection was lost, after an
// error about slots, and every minute. Where keys of different slots cannot, calls are sent as to a Cluster: unbatched, and
// a TakeAll of several keys in two steps. Calls in flight while a server is replaced by several may still share scripts.
//
// A server that answers, but refuses what the store asks of it, is not unavailable but set up for something
// else: see [RefusedError] and [Store.Refusals]. Open fails then.
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/inflight"
)

// Options are the settings of a [Store]. The zero value suits nearly every program.
type Options struct {
	// Prefix begins the name of every key in Redis. Stores with different
	// prefixes share nothing. Letters, digits and : _ - / only. Default: "p".
	Prefix string

	// Timeout is how long Redis may answer nothing before a call ends with
	// [penstock.ErrUnavailable], retries included, whatever the caller's context says. It
	// begins anew when Redis has answered others that were before the call, and once more if
	// goroutines of this process wait for a processor: a crowd of callers is no outage. No call takes
	// more than 20 timeouts, but see [Store.TakeAll]; its error is [penstock.ErrBusy] then. A connection without answers is closed after
	// two to three seconds, or after two to three times a Timeout of more than a second.
	// At most a day. Default: 50 milliseconds.
	Timeout time.Duration

	// MaxCalls is how many calls to a node of Redis may be in flight at once, at most 65536. They are fewer, sixteen at
	// first, as long as that is not how many Redis answers within some milliseconds. A full batch counts as eight. Further
	// calls wait, as long as Redis answers, and not past their contexts. One that was not sent is not charged. Default: 2048.
	MaxCalls int

	// EndEarly ends a call before the deadline of the caller's context, so that the
	// caller can do without it in time, as [penstock.Fallback] does: by a fifth of the
	// time that is left, and at least four milliseconds. Its error is
	// [penstock.ErrUnavailable], or [penstock.ErrBusy] if Redis has answered others meanwhile. Default: a call ends with the caller's context.
	EndEarly bool

	// OnBatch is called when a batch was answered or has failed, before its calls return: with their contexts, how many
	// they are, and when it was sent. It is called concurrently, and must not block. Default: none.
	OnBatch func(calls iter.Seq[context.Context], size int, sent time.Time)

	// AllowUnavailable lets [Open] return a store while Redis is unavailable, for
	// programs that can go on without it, for example with
	// [penstock.WithFallback]. Calls fail at once and trigger reconnection
	// attempts until one succeeds. Permanent errors, such as a wrong password,
	// still make Open fail.
	AllowUnavailable bool

	// connTimeout is the time between two checks of a connection. If no reply
	// came since the last check, the connection gets a PING, and is closed if
	// that is not answered within connTimeout. Tests raise it so that a busy
	// machine is not mistaken for a dead server. Default: Timeout, so that the
	// connection outlasts a call on it, but at least minConnTimeout.
	connTimeout time.Duration

	// connectTimeout bounds connecting together with the inspection of servers.
	// Tests raise it too. Default: Timeout, because the first answer may take as long
	// as any other, but at least minConnectTimeout.
	connectTimeout time.Duration

	// pipelineAll makes the client read all replies in the background. Otherwise
	// a caller that is alone on its connection reads its reply itself, which is
	// faster, but then a canceled call only ends after up to connTimeout.
	pipelineAll bool
}

const (
	defaultPrefix   = "p"
	defaultTimeout  = 50 * time.Millisecond
	maxTimeout      = 24 * time.Hour // twenty of these overflow no time
	defaultMaxCalls = 2048
	maxMaxCalls     = 1 << 16 // every connection reserves some hundred bytes per call

	minConnTimeout    = time.Second
	minConnectTimeout = 5 * time.Second
)

// withDefaults returns the options with their defaults filled in, or an error
// that names the invalid field.
func (o *Options) withDefaults() (Options, error) {
	n := *cmp.Or(o, &Options{})
	n.Prefix = cmp.Or(n.Prefix, defaultPrefix)
	n.Timeout = cmp.Or(n.Timeout, defaultTimeout)
	n.MaxCalls = cmp.Or(n.MaxCalls, defaultMaxCalls)
	n.connectTimeout = cmp.Or(n.connectTimeout, max(n.Timeout, minConnectTimeout))
	if n.connTimeout == 0 {
		n.connTimeout = max(n.Timeout, minConnTimeout)
		n.pipelineAll = n.connTimeout > minConnTimeout
	}
	switch {
	case strings.ContainsFunc(n.Prefix, invalidInPrefix):
		return n, fmt.Errorf("redisstore: Options.Prefix %q: want letters, digits and : _ - / only", n.Prefix)
	case n.Timeout < 0 || n.Timeout > maxTimeout:
		return n, fmt.Errorf("redisstore: Options.Timeout %v: want up to %v", n.Timeout, maxTimeout)
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
	margin      func(left time.Duration) time.Duration // what a call leaves of its caller's time; nil without EndEarly
	onBatch     func(calls iter.Seq[context.Context], size int, sent time.Time)
	maxCalls    int
	maxSilence  time.Duration                             // see inflightLimiter
	inflight    [maxNodes]atomic.Pointer[inflightLimiter] // of the calls to each node; nil until there is one
	answers     *answerLog
	finder      nodeFinder // nil if the client tells no nodes apart
	limits      limitCache
	groups      takeGroups
	groupQueues groupQueues
	denied      deniedKeys
	rollBacks   inflight.Keys[grantName]   // the refunds in the background
	now         func() time.Time           // local time, used only to estimate Redis's
	clockOffset atomic.Int64               // Redis's clock minus the local one, in ticks
	spread      atomic.Int32               // which keys can share a script
	probeAt     atomic.Int64               // when to find that out again, in Unix nanoseconds
	probed      atomic.Int64               // when that was last tried
	form        atomic.Pointer[scriptForm] // of scripts, if it is not the usual one
	refusals    atomic.Uint64
	lastRefusal atomic.Pointer[refusal]
	warnings    atomic.Pointer[[]string]
	close       func()
}

// New returns a store on a client of the caller, which Close does not close. Nil
// options mean defaults.
func New(client Client, o *Options) (*Store, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("redisstore: no client: pass one, or use Open with a URL")
	}
	ctx, cancel := context.WithTimeout(context.Background(), opts.connectTimeout)
	defer cancel()
	s := newStore(client, opts)
	infos, err := client.Info(ctx)
	if err == nil {
		err = s.inspect(infos)
	}
	if err == nil {
		err = s.firstProbe(ctx, client.Do)
	}
	if err != nil {
		return nil, fmt.Errorf("redisstore: %w: connect: %w", penstock.ErrUnavailable, err)
	}
	return s, nil
}

func newStore(client Client, o Options) *Store {
	s := &Store{
		client:   client,
		prefix:   o.Prefix,
		timeout:  o.Timeout,
		onBatch:  o.OnBatch,
		maxCalls: o.MaxCalls, maxSilence: maxSilence(o),
		answers: newAnswerLog(o.Timeout),
		now:     time.Now,
		close:   func() {},
	}
	s.finder, _ = client.(nodeFinder)
	if o.EndEarly {
		s.margin = marginOf
	}
	s.probeAt.Store(math.MaxInt64) // until the first probe
	return s
}

// Close closes the connections that Open has opened. Calls in flight fail, and so
// do later ones. A second Close does nothing.
func (s *Store) Close() { s.close() }

// errClosed is the error of calls after Close.
var errClosed = errors.New("the store is closed")

// Warnings returns the settings of the servers, as found on connecting, that weaken
// limits: sentences for the operator of Redis.
func (s *Store) Warnings() []string {
	if all := s.warnings.Load(); all != nil {
		return slices.Clone(*all)
	}
	return nil
}

// Timeout returns Options.Timeout.
func (s *Store) Timeout() time.Duration { return s.timeout }

var (
	_ penstock.BatchStore   = (*Store)(nil)
	_ penstock.AtomicStore  = (*Store)(nil)
	_ penstock.ShardedStore = (*Store)(nil)
	_ penstock.TimeoutStore = (*Store)(nil)
)
