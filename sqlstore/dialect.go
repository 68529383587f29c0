package sqlstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Dialect is the SQL of a database.
type Dialect int

// The databases.
const (
	PostgreSQL Dialect = iota + 1 // 12 or newer
	MySQL                         // 8.0 or newer, and MariaDB 10.6 or newer
	SQLite                        // 3.24 or newer
)

func (d Dialect) String() string {
	if dialect, err := d.dialect(); err == nil {
		return dialect.name
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

func (d Dialect) dialect() (*dialect, error) {
	if d < PostgreSQL || d > SQLite {
		return nil, fmt.Errorf("penstock: sqlstore: dialect %d: want PostgreSQL, MySQL or SQLite", int(d))
	}
	return dialects[d-PostgreSQL], nil
}

// A dialect is what databases do differently. All statements are texts without arguments, which drivers send in one
// round trip. Names of rows are letters, digits, - and _, so they need no escapes.
type dialect struct {
	name   string
	lanes  int
	create string // of the table

	begin  func(e *engine) []string
	read   func(e *engine, names []string) (query string, args []any) // rows of name, value and time; in PostgreSQL a last one of the time alone
	clock  func(e *engine) string                                     // one more such row, of the time alone; nil: the time of this process
	upsert string                                                     // follows an INSERT of rows that exist
	bytes  string                                                     // a literal of bytes in hexadecimal
	sweep  func(e *engine, after, upTo string) string

	oneWriter bool // a transaction locks the whole database

	oneTrip bool     // several statements, and the commit, are sent at once
	early   []string // commit a transaction of few rows; nil: COMMIT
	failure func(err error) failure
}

// A failure is what an error says about a transaction.
type failure int

const (
	unknown  failure = iota // such as a lost connection
	rejected                // by the database, for good
	repeat                  // rolled back, and may succeed if repeated
)

// changes are rows to be written.
type changes struct {
	existing, created []change
	deleted           []string
}

type change struct {
	name  string
	tid   tid // of a row that exists, in a pipeline
	value []byte
	until int64 // microseconds since 1970
}

var dialects = [...]*dialect{&postgres, &mysql, &sqlite}

// --- PostgreSQL ---

const postgresClock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

var postgres = dialect{
	name:  "PostgreSQL",
	lanes: 2,
	// Free space in pages lets a row be updated within its page, which leaves the index alone.
	create: `CREATE TABLE IF NOT EXISTS %s (
	name  varchar(32) COLLATE "C" PRIMARY KEY,
	value bytea NOT NULL,
	until bigint NOT NULL
) WITH (fillfactor = 70)`,
	begin: func(e *engine) []string {
		return []string{"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT " + postgresSettings(e)}
	},
	// The time is read after the last lock was granted. With an argument, the driver prepares the statement.
	read: func(e *engine, names []string) (string, []any) {
		return `WITH locked AS (SELECT name, value FROM ` + e.table + ` WHERE name = ANY (string_to_array($1::text, ',')) ORDER BY name FOR UPDATE)
SELECT name, value, 0 FROM locked UNION ALL SELECT '', '', ` + postgresClock, []any{strings.Join(names, ",")}
	},
	upsert: onConflict,
	bytes:  `'\x%s'`,
	sweep: func(e *engine, after, upTo string) string {
		return fmt.Sprintf(`DELETE FROM %[1]s WHERE name IN (SELECT name FROM %[1]s
WHERE name > '%[2]s' AND name <= '%[3]s' AND until < %[4]s ORDER BY name FOR UPDATE SKIP LOCKED)`, e.table, after, upTo, postgresClock)
	},
	oneTrip: true,
	// The rows are free before the log is on disk, so that other processes do not wait for that. Then a transaction with
	// the session's synchronous_commit adds a message to the log, and waits until all before it is on disk: what
	// this one has decided, and what it was decided on.
	early: []string{"SET LOCAL synchronous_commit = off", "COMMIT", "SELECT pg_logical_emit_message(true, 'penstock', '')"},
	failure: func(err error) failure {
		var state interface{ SQLState() string } // of pgx and of lib/pq
		if !errors.As(err, &state) {
			return unknown
		}
		switch code := state.SQLState(); {
		case code == "40001" || code == "40P01" || code == "23505": // serialization, deadlock, a row that exists
			return repeat
		case strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "25P03" || code == "26000":
			return unknown // the connection ends, or has lost its prepared statements
		}
		return rejected
	},
}

// onConflict is the upsert of PostgreSQL and SQLite.
const onConflict = " ON CONFLICT (name) DO UPDATE SET value = excluded.value, until = excluded.until"

// postgresSettings returns an expression that sets what a transaction needs. The timeout ends one whose process has stopped, so
// that its rows are free again. The plans are made once: for a single row, planning anew takes longer than the rest. They must
// suit a table that grows from nothing.
func postgresSettings(e *engine) string {
	return fmt.Sprintf("set_config('idle_in_transaction_session_timeout', '%d', true), set_config('enable_seqscan', 'off', true), "+
		"set_config('plan_cache_mode', 'force_generic_plan', true)", e.timeout.Milliseconds())
}

// --- MySQL and MariaDB ---

// mysqlClock adds to the time at which the statement began the time that it has waited for locks. Only the
// former is in UTC whatever the session's time zone; the latter is wrong if the session's clock is
// changed meanwhile, and is then not added.
const (
	mysqlWaited = "TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"
	mysqlClock  = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + IF(" + mysqlWaited + " BETWEEN 0 AND 60000000, " + mysqlWaited + ", 0)"
)

var mysql = dialect{
	name:  "MySQL",
	lanes: 2,
	create: `CREATE TABLE IF NOT EXISTS %s (
	name  varchar(32) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
	value longblob NOT NULL,
	until bigint NOT NULL
)`,
	// At this level, the gaps between rows are not locked.
	begin: func(*engine) []string {
		return []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"}
	},
	read: func(e *engine, names []string) (string, []any) {
		return fmt.Sprintf("SELECT name, value, %s FROM %s WHERE name IN (%s) ORDER BY name FOR UPDATE", mysqlClock, e.table, quoted(names)), nil
	},
	clock:  func(*engine) string { return "SELECT '', '', " + mysqlClock },
	upsert: " ON DUPLICATE KEY UPDATE value = VALUES(value), until = VALUES(until)",
	bytes:  "x'%s'",
	sweep: func(e *engine, after, upTo string) string {
		return fmt.Sprintf("DELETE FROM %s WHERE name > '%s' AND name <= '%s' AND until < %s ORDER BY name", e.table, after, upTo, mysqlClock)
	},
	// The driver's errors have no method to ask.
	failure: func(err error) failure {
		switch text := err.Error(); {
		case !strings.HasPrefix(text, "Error "):
			return unknown
		case slices.ContainsFunc([]string{"1213", "1205", "1062", "1020"}, // deadlock, lock timeout, a row that exists, snapshot
			func(code string) bool { return strings.HasPrefix(text[len("Error "):], code) }):
			return repeat
		}
		return rejected
	},
}

// --- SQLite ---

var sqlite = dialect{
	name:  "SQLite",
	lanes: 1,
	create: `CREATE TABLE IF NOT EXISTS %s (
	name  TEXT PRIMARY KEY,
	value BLOB NOT NULL,
	until INTEGER NOT NULL
) WITHOUT ROWID`,
	oneWriter: true,
	begin:     func(*engine) []string { return []string{"BEGIN IMMEDIATE"} },
	read: func(e *engine, names []string) (string, []any) {
		return fmt.Sprintf("SELECT name, value, 0 FROM %s WHERE name IN (%s)", e.table, quoted(names)), nil
	},
	upsert: onConflict,
	bytes:  "x'%s'",
	sweep: func(e *engine, after, upTo string) string {
		return fmt.Sprintf("DELETE FROM %s WHERE name > '%s' AND name <= '%s' AND until < %d", e.table, after, upTo, e.now().UnixMicro())
	},
	failure: func(err error) failure {
		if text := err.Error(); strings.Contains(text, "database is locked") || strings.Contains(text, "database table is locked") {
			return repeat
		}
		return rejected
	},
}

// quoted returns names as literals.
func quoted(names []string) string { return "'" + strings.Join(names, "', '") + "'" }
