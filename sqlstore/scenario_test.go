package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/sqlstore"
)

// scenarios run on every database.
func scenarios(t *testing.T, db database) {
	t.Run("stores share limits", func(t *testing.T) { testStoresShareLimits(t, db) })
	t.Run("TakeAll is atomic", func(t *testing.T) { testTakeAllIsAtomic(t, db) })
	t.Run("an ID is charged once", func(t *testing.T) { testIDIsChargedOnce(t, db) })
	t.Run("the clock is the database's", func(t *testing.T) { testClock(t, db) })
	t.Run("the clock steps back", func(t *testing.T) { testClockStepsBack(t, db) })
	t.Run("expired rows are deleted", func(t *testing.T) { testExpiredRowsAreDeleted(t, db) })
	t.Run("sweeping starts by itself", func(t *testing.T) { testSweepingStarts(t, db) })
	t.Run("a missing table is unavailable", func(t *testing.T) { testMissingTable(t, db) })
	t.Run("hostile keys", func(t *testing.T) { testHostileKeys(t, db) })
}

// Stores with pools of their own are as processes: new rows and old ones are charged exactly.
func testStoresShareLimits(t *testing.T, db database) {
	table := db.table(t)
	limit := penstock.Limit{Count: 100, Period: 24 * time.Hour}
	var allowed [5]atomic.Int64
	var running sync.WaitGroup
	for range 4 {
		store := db.open(t, sqlstore.Options{Table: table})
		for range 8 {
			running.Go(func() {
				for i := range 100 {
					d, err := store.Take(t.Context(), penstock.Request{Key: fmt.Sprint("key", i%5), Limit: limit, Cost: 1})
					if err != nil {
						t.Error(err)
						return
					}
					if d.Allowed {
						allowed[i%5].Add(1)
					}
				}
			})
		}
	}
	running.Wait()
	for i := range allowed {
		if n := allowed[i].Load(); n != 100 {
			t.Errorf("key %d: %d granted of 640, want 100", i, n)
		}
	}
}

// Transfers between pairs of keys in both orders neither deadlock for good nor charge a part.
func testTakeAllIsAtomic(t *testing.T, db database) {
	table := db.table(t)
	limit := penstock.Limit{Count: 50, Period: 24 * time.Hour}
	var granted atomic.Int64
	var running sync.WaitGroup
	for i := range 4 {
		store := db.open(t, sqlstore.Options{Table: table})
		running.Go(func() {
			for range 40 {
				rs := []penstock.Request{{Key: "a", Limit: limit, Cost: 1}, {Key: "b", Limit: limit, Cost: 1}}
				if i%2 == 1 {
					rs[0], rs[1] = rs[1], rs[0]
				}
				ds := make([]penstock.Decision, 2)
				if err := store.TakeAll(t.Context(), rs, ds); err != nil {
					t.Error(err)
					return
				}
				if penstock.Tightest(ds).Allowed {
					granted.Add(1)
				}
			}
		})
	}
	running.Wait()
	store := db.open(t, sqlstore.Options{Table: table})
	for _, key := range []string{"a", "b"} {
		if d := take(t, store, penstock.Request{Key: key, Limit: limit}); d.Remaining != 0 || granted.Load() != 50 {
			t.Errorf("%d granted of 160, %d of key %s remain; want 50 and 0", granted.Load(), d.Remaining, key)
		}
	}
}

func testIDIsChargedOnce(t *testing.T, db database) {
	table := db.table(t)
	limit := penstock.Limit{Count: 100, Period: 24 * time.Hour}
	var running sync.WaitGroup
	for range 4 {
		store := db.open(t, sqlstore.Options{Table: table})
		for i := range 20 {
			running.Go(func() {
				d, err := store.Take(t.Context(), penstock.Request{Key: "k", Limit: limit, Cost: 2, ID: fmt.Sprint(i)})
				if err != nil || !d.Allowed {
					t.Errorf("%v, %v", d, err)
				}
			})
		}
	}
	running.Wait()
	if d := take(t, db.open(t, sqlstore.Options{Table: table}), penstock.Request{Key: "k", Limit: limit}); d.Remaining != 60 {
		t.Errorf("%d remain after 20 IDs of 2 units, each taken by four stores; want 60", d.Remaining)
	}
}

// A window ends on the hour of the database's clock, which is this machine's.
func testClock(t *testing.T, db database) {
	store := db.open(t, sqlstore.Options{Table: db.table(t)})
	limit := penstock.Limit{Count: 1, Period: time.Hour, Algorithm: penstock.FixedWindow, Align: penstock.AlignClock}
	for _, key := range []string{"new", "again", "new", "again"} {
		before := time.Now()
		d := take(t, store, penstock.Request{Key: key, Limit: limit, Cost: 1})
		if !time.Now().Truncate(time.Hour).Equal(before.Truncate(time.Hour)) {
			continue // the hour has ended meanwhile
		}
		left := before.Truncate(time.Hour).Add(time.Hour).Sub(before)
		if d.ResetAfter > left+time.Minute || d.ResetAfter < left-10*time.Minute {
			t.Errorf("the window ends in %s, want about %s", d.ResetAfter, left)
		}
	}
}

// A clock that steps back frees nothing.
func testClockStepsBack(t *testing.T, db database) {
	o := &sqlstore.Options{Table: db.table(t), Pipeline: db.pipeline}
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	store := sqlstore.NewOnClock(db.DB, db.dialect, o, func() time.Time { return now })
	for _, algorithm := range penstock.Algorithms() {
		limit := penstock.Limit{Count: 5, Period: time.Minute, Algorithm: algorithm}
		if limit.HasPermits() {
			continue // which no time brings back
		}
		granted := 0
		for _, at := range []time.Duration{0, -time.Hour, -time.Hour, -2 * time.Hour} {
			now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(at)
			for range 3 {
				if take(t, store, penstock.Request{Key: "k", Limit: limit, Cost: 1}).Allowed {
					granted++
				}
			}
		}
		if granted < 3 || granted > 5 { // before the first step, and in all
			t.Errorf("%v: %d granted, want 3 to 5", algorithm, granted)
		}
	}
}

func rowsOf(t *testing.T, db database, table string) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT COUNT(*) FROM " + table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// fill takes a unit of many keys.
func fill(t *testing.T, s penstock.BatchStore, prefix string, n int, limit penstock.Limit) {
	t.Helper()
	for i := 0; i < n; i += 500 {
		rs := make([]penstock.Request, min(500, n-i))
		for k := range rs {
			rs[k] = penstock.Request{Key: fmt.Sprint(prefix, i+k), Limit: limit, Cost: 1}
		}
		if err := s.TakeEach(t.Context(), rs, make([]penstock.Decision, len(rs))); err != nil {
			t.Fatal(err)
		}
	}
}

// Steps look at a bounded number of rows, delete those that have expired, and keep the others.
func testExpiredRowsAreDeleted(t *testing.T, db database) {
	o := sqlstore.Options{Table: db.table(t)}
	store := db.open(t, o)
	fill(t, store, "short", 2500, penstock.Limit{Count: 10, Period: time.Millisecond})
	fill(t, store, "long", 1200, penstock.Limit{Count: 10, Period: time.Hour})
	deadline := time.Now().Add(time.Minute)
	for rowsOf(t, db, o.Table) > 1200 && time.Now().Before(deadline) { // until all have expired
		steps, _, err := sqlstore.SweepAll(t.Context(), db.DB, db.dialect, &o)
		if err != nil {
			t.Fatal(err)
		}
		if steps < 2 || steps > 5 {
			t.Errorf("%d steps for up to 3700 rows, want one for each thousand", steps)
		}
	}
	if n := rowsOf(t, db, o.Table); n != 1200 {
		t.Errorf("%d rows are left, want the 1200 that have not expired", n)
	}
	if d := take(t, store, penstock.Request{Key: "long7", Limit: penstock.Limit{Count: 10, Period: time.Hour}}); d.Remaining != 9 {
		t.Errorf("%d remain of a key that has not expired, want 9", d.Remaining)
	}
}

func testSweepingStarts(t *testing.T, db database) {
	o := sqlstore.Options{Table: db.table(t)}
	store := db.open(t, o)
	fill(t, store, "short", 1500, penstock.Limit{Count: 10, Period: time.Millisecond})
	deadline := time.Now().Add(time.Minute)
	for more := true; more; more = rowsOf(t, db, o.Table) > 1 && time.Now().Before(deadline) {
		take(t, store, penstock.Request{Key: "traffic", Limit: penstock.PerHour(1), Cost: 1})
	}
	if n := rowsOf(t, db, o.Table); n != 1 {
		t.Errorf("%d rows are left after a minute of traffic, want 1", n)
	}
}

func testMissingTable(t *testing.T, db database) {
	store := db.open(t, sqlstore.Options{Table: "no_such_table"})
	_, err := store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerMinute(1), Cost: 1})
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "no_such_table") || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want at once that the table is missing", err)
	}
}

// No byte of a key or ID reaches a statement.
func testHostileKeys(t *testing.T, db database) {
	o := sqlstore.Options{Table: db.table(t)}
	store := db.open(t, o)
	for _, key := range []string{"'; DROP TABLE " + o.Table + "; --", "\x00", "\\", `"`, "{}", ",", "\xff\xfe", strings.Repeat("k", 1<<16)} {
		for want := int64(2); want >= 0; want-- {
			r := penstock.Request{Key: key, Limit: penstock.PerHour(3), Cost: 1, ID: key + fmt.Sprint(want)}
			if d := take(t, store, r); d.Remaining != want || !d.Allowed {
				t.Errorf("key %.40q: %v, want %d remaining", key, d, want)
			}
		}
	}
}

func TestNewRejectsBadOptions(t *testing.T) {
	db := openSQLite(t)
	if _, err := sqlstore.New(nil, sqlstore.SQLite, nil); err == nil {
		t.Error("a nil database was accepted")
	}
	if _, err := sqlstore.New(db.DB, 0, nil); err == nil || !strings.Contains(err.Error(), "dialect 0") {
		t.Errorf("dialect 0: %v", err)
	}
	for _, table := range []string{"a b", "a;b", "a.b.c", "'", "é", strings.Repeat("x", 49), "1a", "."} {
		if _, err := sqlstore.New(db.DB, sqlstore.SQLite, &sqlstore.Options{Table: table}); err == nil {
			t.Errorf("table %q was accepted", table)
		}
		if err := sqlstore.Migrate(t.Context(), db.DB, sqlstore.SQLite, table); err == nil {
			t.Errorf("table %q was created", table)
		}
	}
}

// The page shows the statements that Migrate executes.
func TestDocumentShowsTables(t *testing.T) {
	page, err := os.ReadFile("../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []sqlstore.Dialect{sqlstore.PostgreSQL, sqlstore.MySQL, sqlstore.SQLite} {
		statement, err := sqlstore.CreateTable(d, "")
		if err != nil || !strings.Contains(string(page), statement) {
			t.Errorf("docs/sql.md lacks the table of %s, %v:\n%s", d, err, statement)
		}
	}
}
