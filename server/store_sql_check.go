package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/roundtrip"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/sqlstore"
)

// sqlChecks are, for each database, the queries for its version and for its clock in seconds since 1970, and what to
// change if it cannot be opened. SQLite uses the clock of this machine.
var sqlChecks = map[sqlstore.Dialect]struct{ version, clock, advice string }{
	sqlstore.PostgreSQL: {
		"SELECT 'PostgreSQL ' || current_setting('server_version')",
		"SELECT extract(epoch FROM clock_timestamp())::float8",
		checkURL,
	},
	sqlstore.MySQL: {"SELECT version()", "SELECT unix_timestamp(sysdate(6))", checkURL},
	sqlstore.SQLite: {
		"SELECT 'SQLite ' || sqlite_version()", "", "want a file in a directory that exists, and that the daemon may write",
	},
}

const checkURL = "check user, password and database in the URL"

// CheckSQL tries whether the database of the settings can be the store, as [redisstore.Check] does with Redis. It is
// nil without an error if the store is no database. The error is [penstock.ErrUnavailable] if the database does not answer.
// Without create it changes nothing but a row of its own: in an outage, an empty table in place of one that was renamed
// would begin all counters anew.
func CheckSQL(ctx context.Context, c *Config, create bool) (found []redisstore.Finding, err error) {
	scheme, ok := c.sqlScheme()
	if !ok {
		return nil, nil
	}
	if path := sqliteFile(c.Store); !create && scheme.dialect == sqlstore.SQLite && isMissing(path) {
		return []redisstore.Finding{{What: "file", State: redisstore.Broken, Detail: path + " does not exist", Advice: missingAdvice}}, nil
	}
	source, err := scheme.source(c.Store)
	if err != nil {
		return nil, err
	}
	if !create {
		source = strings.Replace(source, keptPragma, "", 1)
	}
	db, err := openSource(scheme.driver, source)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	unbounded := ctx
	ctx, cancel := context.WithTimeout(ctx, c.connectTimeout())
	defer cancel()
	add := func(what, detail, advice string, err error) bool {
		f := redisstore.Finding{What: what, State: redisstore.Works, Detail: detail}
		if err != nil {
			f.State, f.Detail, f.Advice = redisstore.Broken, serverWords(err), sqlAdvice(err, advice)
		}
		found = append(found, f)
		return err == nil
	}
	version, queries := "", sqlChecks[scheme.dialect]
	if err = db.QueryRowContext(ctx, queries.version).Scan(&version); isOutage(err) {
		return nil, fmt.Errorf("%w: %w", penstock.ErrUnavailable, err)
	} else if err != nil {
		add("connection", "", queries.advice, err)
		return found, nil
	}
	add("server", version, "", nil)
	table := cmp.Or(c.SQLTable, sqlstore.DefaultTable)
	rights := "give the user SELECT, INSERT, UPDATE and DELETE on " + table
	if create {
		statement, _ := sqlstore.CreateTable(scheme.dialect, c.SQLTable)
		err, rights = sqlstore.Migrate(ctx, db, scheme.dialect, c.SQLTable), "give the user the right to create it, or create it: "+statement
	} else {
		err = lookAtTable(ctx, db, scheme.dialect, c.SQLTable)
	}
	if !add("table", table, rights, err) {
		return found, nil
	}
	began := time.Now()
	err = tryTakes(ctx, db, scheme.dialect, c)
	add("takes", "exact; three took "+time.Since(began).Round(time.Millisecond/10).String(), "give the user SELECT, INSERT, UPDATE and DELETE on "+table, err)
	if queries.clock != "" {
		var seconds float64
		err = db.QueryRowContext(ctx, queries.clock).Scan(&seconds)
		ahead := time.Duration(seconds*1e9) - time.Duration(time.Now().UnixNano())
		add("clock", "differs from this machine's by "+ahead.Round(time.Millisecond).String(), "", err)
	}
	if scheme.dialect != sqlstore.SQLite { // which makes no trips
		found = append(found, measureSQL(unbounded, db, scheme.dialect, c))
	}
	add("fleet", "counters are shared; overrides, penalties and the list of daemons are not: set --nodes", "", nil)
	return found, nil
}

// measureSQL measures round trips as the daemon's calls make them.
func measureSQL(ctx context.Context, db *sql.DB, d sqlstore.Dialect, c *Config) redisstore.Finding {
	f := redisstore.Finding{What: "round trip", State: redisstore.Broken}
	trips, err := roundtrip.Measure(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, c.connectTimeout())
		defer cancel()
		return lookAtTable(ctx, db, d, c.SQLTable)
	})
	if err != nil {
		f.Detail, f.Advice = serverWords(err), sqlAdvice(err, checkURL)
		return f
	}
	v := trips.Assess(c.SQLTimeout)
	f.State = []redisstore.FindingState{redisstore.Works, redisstore.Degraded, redisstore.Broken}[v.Grade]
	f.Detail, f.Advice = v.Detail, v.Advice
	return f
}

// missingAdvice is what to do about a table that does not exist: a daemon creates it.
const missingAdvice = "a daemon creates it when it starts, and --create does so now; if daemons have used it, restore it instead, or all counters begin anew"

// isMissing reports whether a file is missing in a directory that exists.
func isMissing(path string) bool {
	_, err := os.Stat(path)
	_, dirErr := os.Stat(filepath.Dir(path))
	return errors.Is(err, fs.ErrNotExist) && dirErr == nil
}

// lookAtTable returns an error if the table cannot be read.
func lookAtTable(ctx context.Context, db *sql.DB, d sqlstore.Dialect, table string) error {
	if _, err := sqlstore.CreateTable(d, table); err != nil { // a bad name
		return err
	}
	rows, err := db.QueryContext(ctx, "SELECT name, value, until FROM "+cmp.Or(table, sqlstore.DefaultTable)+" LIMIT 0")
	if err != nil {
		return err
	}
	return errors.Join(rows.Err(), rows.Close())
}

const otherTableAdvice = "it is another table, or a damaged one: name one for penstock alone with --sql-table"

// sqlAdvices are what to do about errors with a text, such as a code of PostgreSQL.
var sqlAdvices = []struct{ text, advice string }{
	{"SQLSTATE 42P01", missingAdvice},
	{"Error 1146", missingAdvice},
	{"no such table", missingAdvice},
	{"SQLSTATE 25006", "it is read-only: want the primary, and default_transaction_read_only off for the user"},
	{"Error 1290", "it is read-only: want the primary, and read_only off"},
	{"readonly database", "the file is read-only: want one that the daemon may write"},
	{"SQLSTATE 53300", "it has no connections left: raise max_connections, or close some"},
	{"SQLSTATE 42703", otherTableAdvice},
	{"Error 1054", otherTableAdvice},
	{"no such column", otherTableAdvice},
	{"SQLSTATE 57P03", "it starts, or shuts down: wait until it accepts connections"},
}

// sqlAdvice returns what to do about an error, or else the other advice.
func sqlAdvice(err error, other string) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "it connects, and then does not answer in time: look for a transaction that locks the table, and for what stops the database"
	}
	for _, a := range sqlAdvices {
		if strings.Contains(err.Error(), a.text) {
			return a.advice
		}
	}
	return other
}

// serverWords returns what a database has replied, without the list of addresses that the driver has tried.
func serverWords(err error) string {
	var postgres interface {
		error
		SQLState() string
	}
	if errors.As(err, &postgres) {
		return postgres.Error()
	}
	return err.Error()
}

// tryTakes takes a key's only unit, is denied another, and resets the key, which deletes its row.
func tryTakes(ctx context.Context, db *sql.DB, d sqlstore.Dialect, c *Config) error {
	store, err := sqlstore.New(db, d, &sqlstore.Options{Table: c.SQLTable, Timeout: c.connectTimeout()})
	if err != nil {
		return err
	}
	r := penstock.Request{Key: rand.Text(), Limit: penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1, Period: time.Minute, Name: "penstock.doctor"}, Cost: 1}
	for _, want := range []bool{true, false, true} {
		got, err := store.Take(ctx, r)
		switch {
		case err != nil:
			return err
		case got.Allowed != want:
			return fmt.Errorf("a take was decided %v, want allowed: %t", got, want)
		case !got.Allowed:
			r.Cost = penstock.Reset
		}
	}
	return nil
}
