// Package rowstore makes a [penstock.Store] of anything that can read and write rows under a lock: a
// database with transactions, a file, a map. The rows hold the same states as a [penstock.Memory], and the
// same code decides on them, so the store has all algorithms, options and verbs, and passes
// storetest.
//
//	store := rowstore.New(engine, nil)
//	limiter, err := penstock.New(store, penstock.PerMinute(100))
//
// An [Engine] is about thirty lines; see the example.
package rowstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
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

// A Row is the state of one key under one limit, or what was granted under one ID.
type Row struct {
	Value   []byte    // nil: the row does not exist, or is to be deleted
	Until   time.Time // of a changed row with a Value: when it may be deleted
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
}

// New returns a store whose states are in the rows of an engine. Nil options mean all defaults.
func New(e Engine, o *Options) penstock.BatchFunc {
	if o == nil {
		o = &Options{}
	}
	s := &store{engine: e, tick: o.Tick}
	if s.tick <= 0 {
		s.tick = time.Microsecond
	}
	sum := sha256.Sum256([]byte("rowstore " + o.Secret))
	s.hashKey = [16]byte(sum[:])
	return s.take
}

type store struct {
	engine  Engine
	tick    time.Duration
	hashKey [16]byte
	idle    sync.Pool // of deciders
}

// take decides the requests in one update of their rows.
func (s *store) take(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	if err := penstock.ValidateBatch(rs, ds, all); err != nil || len(rs) == 0 {
		return err
	}
	names, owners := rowsOf(rs)
	var decideErr error // of a request, such as ErrUnknownID: the decisions on the others are written
	err := s.engine.Update(ctx, names, func(now time.Time, rows []Row) error {
		clear(ds)
		d := s.decider(len(names))
		if err := d.load(now, owners, rows); err != nil {
			return err
		}
		decideErr = penstock.TakeBatch(ctx, d.memory, rs, ds, all)
		if err := d.save(owners, rows); err != nil {
			return err
		}
		s.idle.Put(d) // after an error it may hold states, and is dropped
		return nil
	})
	if err != nil {
		clear(ds)
		return err
	}
	return decideErr
}

// rowsOf returns the names of the rows that the requests use, sorted, and for each the request for which
// a Memory holds its state.
func rowsOf(rs []penstock.Request) (names []string, owners []penstock.Request) {
	byName := make(map[string]penstock.Request, len(rs))
	for i := range rs {
		owner := penstock.Request{Key: rs[i].Key, Limit: rs[i].Limit}
		byName[rowName(&owner)] = owner
		if rs[i].ID != "" && !rs[i].Limit.HasPermits() {
			owner.ID = rs[i].ID
			byName[rowName(&owner)] = owner
		}
	}
	names = slices.Sorted(maps.Keys(byName))
	for _, name := range names {
		owners = append(owners, byName[name])
	}
	return names, owners
}

// layout is part of every name, so that rows of another layout have other names.
const layout = 1

// rowName returns the name of a row: a hash of what identifies the limit's states, the key and the ID,
// in 32 characters.
func rowName(r *penstock.Request) string {
	l := r.Limit.Identity()
	text := fmt.Appendf(nil, "%d %t %q %d %d %d %d %d %d %d %q %d %d %s%s",
		layout, l.Untrusted, l.Name, l.Algorithm, l.Count, l.Period, l.Burst, l.Buckets, l.Align, l.Offset, l.Zone, l.Debt,
		len(r.Key), r.Key, r.ID)
	sum := sha256.Sum256(text)
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
func (s *store) decider(n int) *decider {
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

// load sets the states of the rows.
func (d *decider) load(now time.Time, owners []penstock.Request, rows []Row) error {
	d.now = now
	for i := range rows {
		if rows[i].Value == nil {
			continue
		}
		if err := d.memory.SetState(owners[i], rows[i].Value); err != nil {
			return err
		}
	}
	return nil
}

// save writes the states back to the rows, and removes them from the memory.
func (d *decider) save(owners []penstock.Request, rows []Row) error {
	for i := range rows {
		value, until, err := d.memory.State(owners[i])
		if err == nil {
			err = d.memory.SetState(owners[i], nil)
		}
		if err != nil {
			return err
		}
		rows[i] = Row{Value: value, Until: until, Changed: !bytes.Equal(value, rows[i].Value)}
	}
	return nil
}
