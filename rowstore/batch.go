package rowstore

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// maxBatch is how many rows an update may have, unless one call needs more.
const maxBatch = 512

// A call is what one caller waits for. It has copies of the requests, because the caller may leave before
// they are decided.
type call struct {
	ctx  context.Context // ends when its caller leaves
	rs   []penstock.Request
	ds   []penstock.Decision
	all  bool
	rows []rowRef
	err  error
	done chan struct{} // closed when it is decided

	inFlight bool // under the lane's lock
}

// A rowRef is a row that a call uses.
type rowRef struct {
	name  string
	owner penstock.Request // for which a Memory holds the row's state
	reset bool             // whether the call resets it
	index int              // among the rows of the batch
}

func newCall(ctx context.Context, rs []penstock.Request, all bool) *call {
	c := &call{ctx: ctx, rs: slices.Clone(rs), ds: make([]penstock.Decision, len(rs)), all: all, done: make(chan struct{})}
	for i := range rs {
		c.addRow(penstock.Request{Key: rs[i].Key, Limit: rs[i].Limit}, rs[i].Cost == penstock.Reset)
		if rs[i].ID != "" && !rs[i].Limit.HasPermits() {
			c.addRow(penstock.Request{Key: rs[i].Key, Limit: rs[i].Limit, ID: rs[i].ID}, false)
		}
	}
	return c
}

func (c *call) addRow(owner penstock.Request, reset bool) {
	c.rows = append(c.rows, rowRef{name: rowName(&owner), owner: owner, reset: reset})
}

// A lane has at most one update in flight. Calls that come meanwhile share the next one.
type lane struct {
	store   *Store
	mu      sync.Mutex
	waiting []*call
	busy    bool
}

func (l *lane) add(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, c)
	if !l.busy {
		l.busy = true
		go l.run()
	}
}

// leave returns the error of a call whose caller does not wait any longer: it is dropped if it is not in flight yet.
func (l *lane) leave(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.inFlight {
		return unavailable("in flight, may be charged", c.ctx.Err())
	}
	return unavailable("not sent", c.ctx.Err())
}

// run decides the calls until none waits.
func (l *lane) run() {
	var b batch
	for l.next(&b) {
		l.store.update(&b)
		for _, c := range b.calls {
			close(c.done)
		}
		runtime.Gosched() // the callers that come back at once share the next update
	}
}

// next moves waiting calls to the batch. It reports whether there are any.
func (l *lane) next(b *batch) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.calls = b.calls[:0]
	n, rows := 0, 0
	for ; n < len(l.waiting); n++ {
		c := l.waiting[n]
		if c.ctx.Err() != nil {
			continue
		}
		if rows += len(c.rows); len(b.calls) > 0 && rows > maxBatch {
			break
		}
		c.inFlight = true
		b.calls = append(b.calls, c)
	}
	l.waiting = slices.Delete(l.waiting, 0, n)
	l.busy = len(b.calls) > 0
	return l.busy
}

// A batch is the calls of one update, and their rows in the order of their names.
type batch struct {
	calls  []*call
	refs   []*rowRef
	names  []string
	owners []*penstock.Request
	resets []bool // for each name, whether a call resets the row
}

// gather collects the rows of all calls.
func (b *batch) gather() {
	b.refs, b.names, b.owners, b.resets = b.refs[:0], b.names[:0], b.owners[:0], b.resets[:0]
	for _, c := range b.calls {
		for i := range c.rows {
			b.refs = append(b.refs, &c.rows[i])
		}
	}
	slices.SortFunc(b.refs, func(x, y *rowRef) int { return strings.Compare(x.name, y.name) })
	for i, ref := range b.refs {
		if i == 0 || ref.name != b.refs[i-1].name {
			b.names, b.owners, b.resets = append(b.names, ref.name), append(b.owners, &ref.owner), append(b.resets, false)
		}
		ref.index = len(b.names) - 1
		b.resets[ref.index] = b.resets[ref.index] || ref.reset
	}
}

// until returns when the last caller leaves.
func (b *batch) until() (last time.Time) {
	for _, c := range b.calls {
		if at, _ := c.ctx.Deadline(); at.After(last) {
			last = at
		}
	}
	return last
}

// update decides the calls of a batch in one update of their rows. An error of the engine is one of all calls.
func (s *Store) update(b *batch) {
	b.gather()
	ctx, cancel := context.WithDeadline(context.Background(), b.until())
	defer cancel()
	err := s.engine.Update(ctx, b.names, func(now time.Time, rows []Row) error { return s.decide(ctx, b, now, rows) })
	if err == nil {
		return
	}
	if !errors.Is(err, penstock.ErrUnavailable) && ctx.Err() != nil {
		err = unavailable("may be charged", err)
	}
	for _, c := range b.calls {
		clear(c.ds)
		c.err = err
	}
}

// decide decides each call for itself, and changes the rows accordingly.
func (s *Store) decide(ctx context.Context, b *batch, now time.Time, rows []Row) error {
	d := s.decider(len(rows))
	damaged := d.load(now, b.owners, rows)
	for _, c := range b.calls {
		clear(c.ds)
		if c.err = c.damage(damaged); c.err == nil { // else one such as ErrUnknownID
			c.err = penstock.TakeBatch(ctx, d.memory, c.rs, c.ds, c.all)
		}
	}
	if err := d.save(b, rows, damaged); err != nil {
		return err
	}
	s.idle.Put(d) // after an error it may hold states, and is dropped
	return nil
}

// damage returns the error of a damaged row that the call uses.
func (c *call) damage(damaged map[int]error) error {
	for _, row := range c.rows {
		if err := damaged[row.index]; err != nil {
			return err
		}
	}
	return nil
}
