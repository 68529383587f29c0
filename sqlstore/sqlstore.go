// Package sqlstore is a [penstock.Store] on a database that a program has anyway: PostgreSQL, MySQL or MariaDB,
// or SQLite. It decides what a [penstock.Memory] decides, by the same code, on rows of one table; see package rowstore.
//
//	db, err := sql.Open("pgx", "postgres://user@host/database")
//	err = sqlstore.Migrate(ctx, db, sqlstore.PostgreSQL, "")
//	store, err := sqlstore.New(db, sqlstore.PostgreSQL, nil)
//	limiter, err := penstock.New(store, penstock.PerMinute(100))
//
// The program imports the driver. All processes that use the table share their limits, on the clock of the database, or
// for SQLite on that of the machine.
//
// # Transactions
//
// The calls of a moment share a transaction, which locks their rows in the order of their names, reads them, writes those
// that have changed, and commits. It is repeated within the calls' deadlines if the database certainly rolled it back:
// after a deadlock or a serialization failure, if another process created one of the rows, or if the connection
// was lost before the transaction wrote. If it is lost while the transaction commits, the transaction may or may not have happened: the
// calls get an error that wraps [penstock.ErrUnavailable], and are not repeated. Their units may be charged, but not twice; a caller that
// repeats a call with a [penstock.Request.ID] is charged once.
//
// # Expired rows
//
// A row that has expired counts as none, and is deleted by a later step. Now and then, after a transaction, the store looks at the
// next thousand rows of the table and deletes those that have expired. A table without calls is not cleaned.
package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/penstock-io/penstock/rowstore"
)

// DefaultTable is the name of the table unless the options say otherwise.
const DefaultTable = "penstock"

// Options are the settings of a store.
type Options struct {
	// Table is the name of the table, with or without a schema. Stores with different tables share nothing.
	// Letters, digits, _ and one dot only. Default: DefaultTable.
	Table string

	// Timeout bounds every call, repeated transactions included. Default: a second.
	Timeout time.Duration

	// Secret keeps callers who choose the IDs of permits from finding two that count as one, which takes billions of hashes.
	// Processes that share a table must have the same. Default: none.
	Secret string

	// Lanes is how many transactions of this store may be in flight at once; each uses one connection. Default: 2, or 1
	// for SQLite, which has one writer.
	Lanes int

	// Pipeline, if not nil, sends several queries to PostgreSQL at once, which database/sql cannot. Package pgxpipeline has one.
	Pipeline Pipeline
}

// A Store decides requests in the transactions of a database. It starts no goroutine that lasts, and needs no Close.
type Store struct{ *rowstore.Store }

// New returns a store on the table of a database. [Migrate] creates the table. Nil options mean all defaults.
// New does not connect.
func New(db *sql.DB, d Dialect, o *Options) (*Store, error) {
	o = cmp.Or(o, &Options{})
	e, err := newEngine(db, d, o)
	if err != nil {
		return nil, err
	}
	lanes := cmp.Or(max(o.Lanes, 0), e.dialect.lanes)
	return &Store{rowstore.New(e, &rowstore.Options{Timeout: e.timeout, Secret: o.Secret, Lanes: lanes})}, nil
}

// Migrate creates the table of a store if it does not exist. An empty name is DefaultTable.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, table string) error {
	statement, err := CreateTable(d, table)
	if err != nil {
		return err
	}
	if hasTable(ctx, db, table) { // no right to create tables is needed
		return nil
	}
	// PostgreSQL fails if another process creates the table at the same moment, in spite of IF NOT EXISTS.
	if _, err := db.ExecContext(ctx, statement); err != nil && !hasTable(ctx, db, table) {
		return fmt.Errorf("penstock: sqlstore: create table: %w", err)
	}
	return nil
}

func hasTable(ctx context.Context, db *sql.DB, table string) bool {
	rows, err := db.QueryContext(ctx, "SELECT name, value, until FROM "+cmp.Or(table, DefaultTable)+" LIMIT 0")
	return err == nil && errors.Join(rows.Err(), rows.Close()) == nil
}

// CreateTable returns the statement that [Migrate] executes, for a program that migrates in another way.
func CreateTable(d Dialect, table string) (string, error) {
	table, err := tableName(table)
	if err != nil {
		return "", err
	}
	dialect, err := d.dialect()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(dialect.create, table), nil
}

var tablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,47}(\.[A-Za-z_][A-Za-z0-9_]{0,47})?$`)

func tableName(name string) (string, error) {
	if name == "" {
		return DefaultTable, nil
	}
	if !tablePattern.MatchString(name) {
		return "", fmt.Errorf("penstock: sqlstore: table %q: want letters, digits, _ and one dot", name)
	}
	return name, nil
}
