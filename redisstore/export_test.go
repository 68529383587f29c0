package redisstore

import (
	"context"
	"crypto/rand"
	"math"
	"time"

	"github.com/penstock-io/penstock"
)

// Access to internals for the external test package.

// Permissions are what Check tells that a user needs.
const Permissions = permissions

// WithConnTimeout returns options whose connections may be silent for longer, and take
// longer to make, so that a busy machine is not mistaken for a dead server.
func (o Options) WithConnTimeout(d time.Duration) Options {
	o.connTimeout, o.connectTimeout = d, 2*d
	return o
}

// WithPipelining returns options with which all replies are read in the background.
func (o Options) WithPipelining() Options {
	o.connTimeout, o.pipelineAll = minConnTimeout, true
	return o
}

// SetClock moves the local clock of the store ahead.
func (s *Store) SetClock(ahead time.Duration) {
	s.now = func() time.Time { return time.Now().Add(ahead) }
}

// EndAfter makes calls end after d, and leave the rest of their callers' time.
func (s *Store) EndAfter(d time.Duration) {
	s.margin = func(left time.Duration) time.Duration { return left - d }
}

// Share returns another store on the connections of the first. It is closed with
// the first.
func (s *Store) Share(o Options) (*Store, error) {
	opts, err := o.withDefaults()
	n := newStore(s.client, opts)
	n.spread.Store(s.spread.Load())
	n.form.Store(s.form.Load())
	return n, err
}

// Connect makes new connections, as a reconnect does, but does not switch to them.
func (s *Store) Connect(ctx context.Context) error {
	client, err := s.client.(*rueidisClient).connectAndInspect(ctx)
	if err == nil {
		client.Close()
	}
	return err
}

// Reconnect replaces the connections, as after a demotion, and closes the old ones in
// the background.
func (s *Store) Reconnect() {
	client := s.client.(*rueidisClient)
	client.replace(client.current.Load())
}

// KeepSpread keeps the store from probing, after a reconnect and every minute, for tests that count or cut calls: on a
// busy machine they take longer than that.
func (s *Store) KeepSpread() {
	s.client.(*rueidisClient).connections.OnReplaced = nil
	s.probeAt.Store(math.MaxInt64)
}

// ProbeNow makes the next call probe the server, as one does every minute.
func (s *Store) ProbeNow() { s.probeAt.Store(0) }

// Probe probes the server, as a call does every minute, and waits for it.
func (s *Store) Probe(ctx context.Context) error {
	d := s.deadlineAfter(ctx, time.Now(), s.timeout)
	defer d.stop()
	return s.probe(func(calls []Call) { s.roundTrip(d, calls) })
}

// ProbeKeys returns keys with which a probe finds out whether keys of different slots share scripts.
func ProbeKeys() []string { return (&probe{prefix: "p:", mark: rand.Text()}).keysOfAllShards() }

// ForgetSpread is what happens when a connection is opened after one was lost.
func (s *Store) ForgetSpread() { s.forgetSpread() }

// FindOneServer is what happens when a probe finds out that keys of different slots share scripts.
func (s *Store) FindOneServer() { s.spread.Store(oneServer) }

// MinProbeGap is the least time between probes.
const MinProbeGap = minProbeGap

// SharesScripts reports whether keys of different slots share scripts, and which of one slot do.
func (s *Store) SharesScripts() (slots, slot bool) {
	found := s.spread.Load()
	return found == oneServer, found != byKey
}

// Connecting reports whether a call is opening a connection.
func (s *Store) Connecting() bool { return s.client.(*rueidisClient).connections.Connecting() }

// TakeBatched decides requests with one limit and one cost as one batch. Requests
// without a context get the background context.
func (s *Store) TakeBatched(rs []penstock.Request, ctxs ...context.Context) (ds []penstock.Decision, errs []error) {
	ds, errs = make([]penstock.Decision, len(rs)), make([]error, len(rs))
	b, takes := &batch{}, make([]*singleTake, len(rs))
	for i := range rs {
		t := newSingleTake()
		takes[i], t.start = t, time.Now()
		if errs[i] = s.compile(&t.request, &rs[i], 0); errs[i] != nil {
			continue
		}
		t.queue = t.request.queue()
		t.prepare(contextOf(i, ctxs))
		b.takes = append(b.takes, t)
	}
	if len(b.takes) > 0 {
		s.flush(b)
	}
	for i, t := range takes {
		if errs[i] == nil {
			ds[i], errs[i] = s.awaitOrSendAlone(contextOf(i, ctxs), t)
		}
	}
	return ds, errs
}

// awaitOrSendAlone ends a batched take as submit does.
func (s *Store) awaitOrSendAlone(ctx context.Context, t *singleTake) (penstock.Decision, error) {
	if ok, err := s.await(ctx, &t.pending); err != nil {
		return penstock.Decision{}, err
	} else if ok {
		if decision, ok, err := s.decode(&t.request, &t.calls[0]); ok {
			return decision, err
		}
	}
	d := s.deadlineAfter(ctx, t.start, s.timeout)
	defer d.stop()
	return s.sendAlone(d, &t.request, t.calls[:])
}

func contextOf(i int, ctxs []context.Context) context.Context {
	if i < len(ctxs) {
		return ctxs[i]
	}
	return context.Background()
}

// Joins reports whether a request joins the batch of one that came this long before.
func (s *Store) Joins(r penstock.Request, before time.Duration) (bool, error) {
	first, second := newSingleTake(), newSingleTake()
	for _, t := range []*singleTake{first, second} {
		if err := s.compile(&t.request, &r, 0); err != nil {
			return false, err
		}
		t.queue, t.shares = t.request.queue(), t.request.sharing()
	}
	first.start = time.Now()
	second.start = first.start.Add(before)
	b, _ := s.join(context.Background(), first)
	joined, isFirst := s.join(context.Background(), second)
	if !isFirst {
		first.queue.seal(b, &first.pending)
		b.release()
		return true, nil
	}
	second.queue.seal(joined, &second.pending)
	joined.release()
	_, err := s.await(context.Background(), &first.pending) // whose batch the second has sent
	return false, err
}

// InFlight returns how many slots calls in flight hold.
func (s *Store) InFlight() (held int) {
	for i := range s.inflight {
		if l := s.inflight[i].Load(); l != nil {
			held += l.held()
		}
	}
	return held
}

func (l *inflightLimiter) held() int {
	w := l.window
	w.mu.Lock()
	defer w.mu.Unlock()
	outside := cap(w.slots) - w.size - int(w.owed.Load())
	return len(w.slots) - outside
}

// CommonScripts returns the SHA1 of every script that Open loads.
func CommonScripts() (list []string) {
	for _, s := range commonScripts() {
		list = append(list, s.SHA1)
	}
	return list
}

// TakeAllBatched decides TakeAlls of the same steps as one batch. It reports whether they can share
// one.
func (s *Store) TakeAllBatched(all [][]penstock.Request, ds [][]penstock.Decision, ctxs ...context.Context) (errs []error, grouped bool) {
	return s.takeGroupBatched(all, ds, false, ctxs)
}

// TakeEachBatched decides TakeEachs of the same steps as one batch, as TakeAllBatched does.
func (s *Store) TakeEachBatched(all [][]penstock.Request, ds [][]penstock.Decision, ctxs ...context.Context) (errs []error, grouped bool) {
	return s.takeGroupBatched(all, ds, true, ctxs)
}

func (s *Store) takeGroupBatched(all [][]penstock.Request, ds [][]penstock.Decision, each bool, ctxs []context.Context) (errs []error, grouped bool) {
	b, takes := &batch{}, make([]*groupTake, len(all))
	errs = make([]error, len(all))
	for i, rs := range all {
		t := newGroupTake()
		if t.items, errs[i] = s.compileItems(nil, rs); errs[i] != nil {
			return errs, false
		}
		if errs[i] = sumCosts(t.items); errs[i] != nil {
			return errs, false
		}
		if t.group = s.groupOf(t.items, rs, each); t.group == nil || i > 0 && t.group.queue != takes[0].group.queue {
			return errs, false
		}
		t.encodeKeys(time.Now())
		t.prepare(contextOf(i, ctxs))
		b.takes, takes[i] = append(b.takes, t), t
	}
	s.flush(b)
	for i, t := range takes {
		errs[i] = s.awaitOrSendAllAlone(contextOf(i, ctxs), t, ds[i])
	}
	return errs, true
}

// awaitOrSendAllAlone ends a batched TakeAll as submitGroup does.
func (s *Store) awaitOrSendAllAlone(ctx context.Context, t *groupTake, ds []penstock.Decision) error {
	if ok, err := s.await(ctx, &t.pending); ok || err != nil {
		t.decideAll(ds, ok)
		return err
	}
	d := s.deadlineAfter(ctx, t.start, s.timeout)
	defer d.stop()
	return s.sendGroupAlone(d, t, ds)
}

// Classify returns the rejection code of an error of Redis, and whether it tells of a value that no limit
// wrote.
func Classify(err error) (code string, foreign bool) { return rejectionCode(err), isForeign(err) }

// IsRefusal reports whether an error of a call to one server is a refusal.
func IsRefusal(err error) bool { return refusalOf(err, false) != nil }

// ScriptsOfCheck are those that Check runs besides the store's own, and one of these.
var ScriptsOfCheck = []*Script{hashScript, boardScript, textScript, expiryScript, timeScript, scriptsOf()[0].take}

// PassingAdvice is a function of Check.
var PassingAdvice = passingAdvice
