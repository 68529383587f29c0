package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/penstock-io/penstock/rowstore"
)

// NewOnClock returns a store on a clock of the test, with ticks of a millisecond.
func NewOnClock(db *sql.DB, d Dialect, o *Options, now func() time.Time) *Store {
	e, err := newEngine(db, d, o)
	if err != nil {
		panic(err)
	}
	e.now, e.fake = now, true
	e.sweeper.next.Store(1 << 62)
	return &Store{rowstore.New(e, &rowstore.Options{Tick: time.Millisecond, Timeout: time.Minute, Lanes: o.Lanes})}
}

// SweepAll deletes the expired rows of a table in steps, and returns how many steps that took.
func SweepAll(ctx context.Context, db *sql.DB, d Dialect, o *Options) (steps, deleted int, err error) {
	e, err := newEngine(db, d, o)
	for err == nil {
		var n int64
		n, err = e.sweeper.sweep(ctx, e)
		steps++
		deleted += int(n)
		if e.sweeper.after == "" {
			break
		}
	}
	return steps, deleted, err
}

// Begin returns the statements with which a transaction begins.
func Begin(d Dialect, o *Options) []string {
	e, err := newEngine(new(sql.DB), d, o)
	if err != nil {
		panic(err)
	}
	return e.dialect.begin(e)
}
