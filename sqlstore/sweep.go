package sqlstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	sweepRows  = 1000        // that a step looks at
	sweepPause = time.Second // between steps, and less after one that deleted most of its rows
)

// A sweeper deletes expired rows in steps, each of which looks at the rows after those of the step before. So it needs
// no index of their expiry, which every write would have to change.
type sweeper struct {
	busy  atomic.Bool
	next  atomic.Int64 // when the next step is due, on the process's clock
	after string       // the name of the last row that a step looked at
}

// step starts a step if one is due.
func (s *sweeper) step(e *engine) {
	now := time.Now()
	if s.next.Load() > now.UnixNano() || s.busy.Swap(true) {
		return
	}
	go func() {
		defer s.busy.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), e.timeout)
		defer cancel()
		deleted, _ := s.sweep(ctx, e) // after an error, the next step tries again
		pause := sweepPause
		if deleted > sweepRows/2 {
			pause /= 20
		}
		s.next.Store(now.Add(pause).UnixNano())
	}()
}

// lastName is after the names of all rows.
const lastName = "~"

func (s *sweeper) sweep(ctx context.Context, e *engine) (deleted int64, err error) {
	upTo := lastName
	row := e.db.QueryRowContext(ctx, fmt.Sprintf("SELECT COALESCE(MAX(name), '%s'), COUNT(*) FROM (SELECT name FROM %s WHERE name > '%s' ORDER BY name LIMIT %d) AS step",
		lastName, e.table, s.after, sweepRows))
	var looked int
	if err := row.Scan(&upTo, &looked); err != nil {
		return 0, err
	}
	result, err := e.db.ExecContext(ctx, e.dialect.sweep(e, s.after, upTo))
	if err != nil {
		return 0, err
	}
	if s.after = upTo; looked < sweepRows {
		s.after = ""
	}
	return result.RowsAffected()
}
