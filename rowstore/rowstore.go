// Package rowstore makes a [penstock.Store] of anything that can read and write rows under a lock: a
// database with transactions, a file, a map. The rows hold the same states as a [penstock.Memory], and the
// same code decides on them, so the store has all algorithms, options and verbs, and passes
// storetest.
//
//	store := rowstore.New(engine, nil)
//	limiter, err := penstock.New(store, penstock.PerMinute(100))
//
// An [Engine] is about thirty lines; see the example. Test it with two stores, because a single one never
// updates a row twice at the same time, so that a missing lock goes unnoticed:
//
//	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
//		engine, o := newEmptyEngine(t, clock.Now), &rowstore.Options{Tick: time.Millisecond, Timeout: time.Minute}
//		return storetest.Spread(rowstore.New(engine, o), rowstore.New(engine, o))
//	})
package rowstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/defaults"
)

// An Engine holds rows. It is safe for concurrent use.
type Engine interface {
	// Update reads rows, changes them and writes those that have Changed, such that no other
	// Update sees or changes them in between: in one transaction, or under one lock. The names are sorted and
	// distinct, so engines that lock rows in this order do not deadlock. A row that does not exist has a
	// nil Value.
	//
	// Change must be called with the time on a clock that all processes of the engine share, such as that of the
	// database. It may be called again, with rows read again, if the transaction could not be
	// committed. If it returns an error, nothing is written, and Update returns that error.
	//
	// An error of the engine itself should wrap [penstock.ErrUnavailable].
	Update(ctx context.Context, names []string, change func(now time.Time, rows []Row) error) error
}

// A Row is the state of one key under one limit, or what was granted under one ID. A Value that was read is
// neither modified nor kept, and a new one is the engine's. Rows that have expired mean nothing: the engine
// may read them as they are, or as ones that do not exist, and deletes them when it likes, or its disk fills.
type Row struct {
	Value   []byte    // nil: the row does not exist, or is to be deleted
	Until   time.Time // of a changed row with a Value: when it expires, on the engine's clock
	Changed bool
}

// Options are the settings of a store.
type Options struct {
	// Tick is the resolution of the engine's clock; all times are whole ticks. Processes that share
	// rows must have the same. Default: a microsecond.
	Tick time.Duration

	// Secret keeps callers who choose IDs from finding two that collide. Processes that share rows
	// must have the same. Default: none, which is fine if callers are trusted, or do not choose
	// the IDs of permits.
	Secret string

	// Timeout bounds every call, whatever the caller's context says. Default: a second.
	Timeout time.Duration

	// Lanes is how many updates of this store may be in flight at once. Each key has its lane, and
	// calls that come while an update of their lane is in flight share the next one. Default: 1.
	Lanes int
}

// A Store is a [penstock.BatchStore] and [penstock.AtomicStore] on an [Engine].
//
// Calls share updates: those that come while one is in flight are decided, each for itself, in the next
// one. So the engine is called once for tens of calls if it is busy, and at once if it is not.
//
// A call ends with the caller's context or after Options.Timeout, with an error that wraps
// [penstock.ErrUnavailable]. If it waited for an update, nothing was charged; if its update was in
// flight, it may be charged, as the error says. A [penstock.Request.ID] makes it safe to repeat.
type Store struct {
	penstock.BatchFunc
	engine  Engine
	tick    time.Duration
	hashKey [16]byte
	timeout time.Duration
	lanes   []lane
	idle    sync.Pool // of deciders
}

// New returns a store whose states are in the rows of an engine. Nil options mean all defaults.
func New(e Engine, o *Options) *Store {
	o = cmp.Or(o, &Options{})
	s := &Store{
		engine: e, tick: defaults.Or(o.Tick, time.Microsecond), timeout: defaults.Or(o.Timeout, time.Second),
		lanes: make([]lane, defaults.Or(o.Lanes, 1)),
	}
	for i := range s.lanes {
		s.lanes[i].store = s
	}
	sum := sha256.Sum256([]byte("rowstore " + o.Secret))
	s.hashKey = [16]byte(sum[:])
	s.BatchFunc = s.take
	return s
}

// Timeout returns the longest time that a call takes. It implements [penstock.TimeoutStore].
func (s *Store) Timeout() time.Duration { return s.timeout }

// take lets the lane of the first row decide the requests, and waits for it.
func (s *Store) take(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	if err := penstock.ValidateBatch(rs, ds, all); err != nil || len(rs) == 0 {
		return err
	}
	if err := ctx.Err(); err != nil {
		return unavailable("not sent", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	c := newCall(ctx, rs, all)
	lane := &s.lanes[int(c.rows[0].name[0])%len(s.lanes)]
	lane.add(c)
	select {
	case <-c.done:
		copy(ds, c.ds)
		return c.err
	case <-ctx.Done():
		return lane.leave(c)
	}
}

func unavailable(state string, err error) error {
	return fmt.Errorf("penstock: rowstore: %w: %s: %w", penstock.ErrUnavailable, state, err)
}

// layout is part of every name, so that rows of another layout have other names.
const layout = 1

// rowName returns the name of a row: a hash of what identifies the limit's states, the key and the ID,
// in 32 characters.
func rowName(r *penstock.Request) string {
	l := r.Limit.Identity()
	b := make([]byte, 0, 512)
	for _, n := range [...]int64{
		layout, int64(len(r.Key)), int64(len(l.Name)), int64(len(l.Zone)), int64(l.Algorithm), l.Count, int64(l.Period),
		l.Burst, int64(l.Buckets), int64(l.Align), int64(l.Offset), l.Debt,
	} {
		b = binary.AppendVarint(b, n)
	}
	b = strconv.AppendBool(b, l.Untrusted)
	for _, text := range [...]string{l.Name, l.Zone, r.Key, r.ID} {
		b = append(b, text...)
	}
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:24])
}

// A decider is a Memory that holds the states of one update, and is empty between updates.
type decider struct {
	memory  *penstock.Memory
	maxRows int
	now     time.Time
}

// smallDecider is how many rows the deciders that are kept have room for.
const smallDecider = 1000

// decider returns an empty decider with room for n rows.
func (s *Store) decider(n int) *decider {
	if d, ok := s.idle.Get().(*decider); ok && n <= d.maxRows {
		return d
	}
	d := &decider{maxRows: max(n, smallDecider)}
	d.memory = penstock.NewMemory(&penstock.MemoryOptions{
		Now: func() time.Time { return d.now }, Tick: s.tick, HashKey: s.hashKey,
		MaxKeys: 16 * d.maxRows, MaxBytes: math.MaxInt64 / 8, UntrustedShare: 1,
	})
	return d
}

// load sets the states of the rows. It returns the errors of damaged rows by their index.
func (d *decider) load(now time.Time, owners []*penstock.Request, rows []Row) (damaged map[int]error) {
	d.now = now
	for i := range rows {
		if rows[i].Value == nil {
			continue
		}
		if err := d.memory.SetState(*owners[i], rows[i].Value); err != nil {
			if damaged == nil {
				damaged = map[int]error{}
			}
			damaged[i] = &penstock.KeyError{Key: owners[i].Key, Err: err}
		}
	}
	return damaged
}

// save writes the states back to the rows that are not damaged, and removes them from the memory. A row that was
// reset is deleted even if it was not read: the engine may have one that has expired.
func (d *decider) save(b *batch, rows []Row, damaged map[int]error) error {
	for i := range rows {
		if damaged[i] != nil {
			continue
		}
		value, until, err := d.memory.State(*b.owners[i])
		if err == nil {
			err = d.memory.SetState(*b.owners[i], nil)
		}
		if err != nil {
			return err
		}
		rows[i] = Row{Value: value, Until: until, Changed: b.resets[i] || !bytes.Equal(value, rows[i].Value)}
	}
	return nil
}
