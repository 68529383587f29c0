package rowstore_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rowstore"
)

// A mapEngine holds rows in a map. One on a database does the same in a transaction: it selects the rows for
// update, calls change with the time of the database, and writes those that have changed.
type mapEngine struct {
	now     func() time.Time
	repeats int // as if so many commits had failed

	hidesExpired bool // from reads

	mu   sync.Mutex
	rows map[string]rowstore.Row
}

func (e *mapEngine) Update(_ context.Context, names []string, change func(time.Time, []rowstore.Row) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := make([]rowstore.Row, len(names))
	for range e.repeats + 1 {
		for i, name := range names {
			rows[i] = rowstore.Row{Value: e.rows[name].Value}
			if e.hidesExpired && !e.rows[name].Until.After(e.now()) {
				rows[i].Value = nil
			}
		}
		if err := change(e.now(), rows); err != nil {
			return err
		}
	}
	if e.rows == nil {
		e.rows = map[string]rowstore.Row{}
	}
	for i, name := range names {
		switch {
		case rows[i].Changed && rows[i].Value == nil:
			delete(e.rows, name)
		case rows[i].Changed:
			e.rows[name] = rows[i]
		}
	}
	return nil
}

func Example() {
	store := rowstore.New(&mapEngine{now: time.Now}, nil)
	limiter, err := penstock.New(store, penstock.PerMinute(2))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, err := limiter.Allow(context.Background(), "alice")
		fmt.Println(d.Allowed, d.Remaining, err)
	}
	// Output:
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
}
