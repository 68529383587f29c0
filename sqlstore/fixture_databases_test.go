package sqlstore_test

import (
	"cmp"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/sqlstore"
	"github.com/penstock-io/penstock/storetest"
)

// A database is one to test on.
type database struct {
	*sql.DB
	dialect  sqlstore.Dialect
	pipeline sqlstore.Pipeline
}

var tables atomic.Int64

// table creates a table that no other test uses.
func (db database) table(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("penstock_%d", tables.Add(1))
	if err := sqlstore.Migrate(t.Context(), db.DB, db.dialect, name); err != nil {
		t.Fatal(err)
	}
	return name
}

// open returns a store on a table. Without a timeout, it waits longer than a call takes on a busy machine.
func (db database) open(t testing.TB, o sqlstore.Options) *sqlstore.Store {
	t.Helper()
	o.Pipeline, o.Timeout = db.pipeline, cmp.Or(o.Timeout, time.Minute)
	store, err := sqlstore.New(db.DB, db.dialect, &o)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// openSQLite returns a database in a file, as docs/sql.md says.
func openSQLite(t testing.TB) database {
	t.Helper()
	db, _ := openSQLiteFile(t)
	return db
}

func openSQLiteFile(t testing.TB) (opened database, source string) {
	t.Helper()
	source = "file:" + filepath.Join(t.TempDir(), "penstock.db") + "?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(1000)"
	db, err := sql.Open("sqlite", source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return database{DB: db, dialect: sqlstore.SQLite}, source
}

// conform runs all of storetest on two stores of one table, as two processes.
func conform(t *testing.T, db database) {
	table := db.table(t)
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		if _, err := db.Exec("DELETE FROM " + table); err != nil {
			t.Fatal(err)
		}
		o := &sqlstore.Options{Table: table, Lanes: 2, Pipeline: db.pipeline}
		return storetest.Spread(sqlstore.NewOnClock(db.DB, db.dialect, o, clock.Now), sqlstore.NewOnClock(db.DB, db.dialect, o, clock.Now))
	})
}

func take(t testing.TB, s penstock.Store, r penstock.Request) penstock.Decision {
	t.Helper()
	d, err := s.Take(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
