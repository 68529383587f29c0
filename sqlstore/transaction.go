package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/rowstore"
)

// An engine is the rows of a table.
type engine struct {
	db       *sql.DB
	dialect  *dialect
	table    string
	timeout  time.Duration
	now      func() time.Time // of SQLite
	pipeline Pipeline         // of PostgreSQL; nil: none
	fake     bool             // whether now is the clock of every dialect, for tests
	sweeper  sweeper
}

func newEngine(db *sql.DB, d Dialect, o *Options) (*engine, error) {
	dialect, err := d.dialect()
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, errors.New("penstock: sqlstore: no database")
	}
	table, err := tableName(o.Table)
	if err != nil {
		return nil, err
	}
	timeout := cmp.Or(max(o.Timeout, 0), time.Second)
	e := &engine{db: db, dialect: dialect, table: table, timeout: timeout, now: time.Now}
	if d == PostgreSQL {
		e.pipeline = o.Pipeline
	}
	return e, nil
}

// lostConnections is how many connections in a row may be lost before anything was written. Those of a pool are
// all lost when the server restarts.
const lostConnections = 4

// Update changes rows in a transaction, which it repeats while the database rolls it back.
func (e *engine) Update(ctx context.Context, names []string, change func(time.Time, []rowstore.Row) error) error {
	t := transaction{engine: e, names: names, rows: make([]rowstore.Row, len(names)), change: change}
	lost := 0
	for attempt := 0; ; attempt++ {
		sent, err := t.run(ctx)
		if err == nil {
			e.sweeper.step(e)
			return nil
		}
		if t.changeErr != nil {
			return t.changeErr
		}
		f := e.failure(err)
		if f == repeat {
			sent, err = false, cmp.Or(pause(ctx, attempt), err)
		} else {
			lost++
		}
		if sent || f == rejected || f == unknown && (lost > lostConnections || !t.connected) || ctx.Err() != nil {
			return unavailable(sent, err)
		}
	}
}

// errChanged means that a row was created after the transaction had found that it does not exist.
var errChanged = errors.New("rows have changed")

func (e *engine) failure(err error) failure {
	if errors.Is(err, errChanged) {
		return repeat
	}
	return e.dialect.failure(err)
}

// pause waits longer after each attempt, and a different time in each process.
func pause(ctx context.Context, attempt int) error {
	return monotime.Sleep(ctx, rand.N(time.Duration(min(attempt, 20)+1)*time.Millisecond))
}

func unavailable(sent bool, err error) error {
	state := "not charged"
	if sent {
		state = "may be charged"
	}
	return fmt.Errorf("penstock: sqlstore: %w: %s: %w", penstock.ErrUnavailable, state, err)
}

// A transaction is one Update.
type transaction struct {
	engine    *engine
	conn      *sql.Conn
	names     []string
	rows      []rowstore.Row
	exists    []bool
	change    func(time.Time, []rowstore.Row) error
	changeErr error
	tids      []tid // in a pipeline
	begun     bool  // in a pipeline
	connected bool
}

// run tries the transaction once. It reports whether a commit was sent.
func (t *transaction) run(ctx context.Context) (sent bool, err error) {
	t.connected = false
	if t.conn, err = t.engine.db.Conn(ctx); err != nil {
		return false, err
	}
	t.connected = true
	sent, err = t.steps(ctx)
	if err != nil {
		t.rollback(ctx)
	}
	_ = t.conn.Close() // returns it to the pool
	return sent, err
}

func (t *transaction) steps(ctx context.Context) (sent bool, err error) {
	now, err := t.read(ctx)
	if err != nil {
		return false, err
	}
	if t.changeErr = t.change(now, t.rows); t.changeErr != nil {
		return false, t.changeErr
	}
	if err = t.checkAbsent(ctx); err != nil {
		return false, err
	}
	return t.write(ctx)
}

// begin begins a transaction, unless the pipeline that reads does.
func (t *transaction) begin(ctx context.Context) error {
	t.begun = false
	if t.engine.pipeline != nil {
		return nil
	}
	for _, statement := range t.engine.dialect.begin(t.engine) {
		if err := t.exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// write writes what has changed, and commits. It reports whether the commit was sent.
func (t *transaction) write(ctx context.Context) (sent bool, err error) {
	c := t.changes()
	if t.engine.pipeline != nil {
		queries := c.queries(t.engine.table)
		for _, statement := range t.commit() {
			queries = append(queries, Query{SQL: statement})
		}
		return true, t.send(ctx, queries, func([][]byte) {})
	}
	statements := append(t.engine.writes(c), t.commit()...)
	if t.engine.dialect.oneTrip {
		return true, t.exec(ctx, strings.Join(statements, "; "))
	}
	for i, statement := range statements {
		sent = i == len(statements)-1
		if err = t.exec(ctx, statement); err != nil {
			break
		}
	}
	return sent, err
}

// fewRows is how many rows a transaction has at most that may be one of busy keys. With more, a second transaction costs more
// than others gain.
const fewRows = 8

func (t *transaction) commit() []string {
	if early := t.engine.dialect.early; early != nil && len(t.names) <= fewRows {
		return early
	}
	return []string{"COMMIT"}
}

func (t *transaction) exec(ctx context.Context, statement string) error {
	_, err := t.conn.ExecContext(ctx, statement)
	return err
}

// rollback leaves the connection without a transaction, or closes it.
func (t *transaction) rollback(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.engine.timeout)
	defer cancel()
	if t.exec(ctx, "ROLLBACK") != nil {
		_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// read begins the transaction, locks and reads the rows, and returns the time.
func (t *transaction) read(ctx context.Context) (now time.Time, err error) {
	e := t.engine
	clear(t.rows)
	t.exists, t.tids = make([]bool, len(t.names)), make([]tid, len(t.names))
	if err = t.begin(ctx); err != nil {
		return time.Time{}, err
	}
	micros, err := t.lock(ctx, t.names)
	if err == nil && micros == 0 && e.dialect.clock != nil {
		micros, err = t.scan(ctx, e.dialect.clock(e))
	}
	if e.fake || micros == 0 {
		return e.now(), err
	}
	return time.UnixMicro(micros), err
}

// checkAbsent fails if a row exists now that did not when the transaction looked, before it waited for the lock of another
// row: the transaction must see what one moment holds. A row that it creates is checked by that.
func (t *transaction) checkAbsent(ctx context.Context) error {
	var absent []string
	for i, exists := range t.exists {
		if !exists && !t.rows[i].Changed {
			absent = append(absent, t.names[i])
		}
	}
	if len(absent) == 0 || len(t.names) == 1 || t.engine.dialect.oneWriter {
		return nil
	}
	_, err := t.lock(ctx, absent)
	for _, name := range absent {
		if i, _ := slices.BinarySearch(t.names, name); t.exists[i] && err == nil {
			err = errChanged
		}
	}
	return err
}

// lock locks and reads rows, and returns the time if that came with them.
func (t *transaction) lock(ctx context.Context, names []string) (micros int64, err error) {
	if t.engine.pipeline != nil {
		return t.lockAtOnce(ctx, names)
	}
	query, args := t.engine.dialect.read(t.engine, names)
	return t.scan(ctx, query, args...)
}

// scan reads rows, and returns the latest time among them.
func (t *transaction) scan(ctx context.Context, query string, args ...any) (micros int64, err error) {
	rows, err := t.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	var name, value sql.RawBytes
	for rows.Next() {
		var at int64
		if err := rows.Scan(&name, &value, &at); err != nil {
			return 0, err
		}
		micros = max(micros, at)
		if i, ok := slices.BinarySearch(t.names, string(name)); ok {
			t.rows[i].Value, t.exists[i] = slices.Clone(value), true
		}
	}
	return micros, rows.Err()
}

// changes returns the rows that have changed.
func (t *transaction) changes() (c changes) {
	for i, row := range t.rows {
		switch {
		case !row.Changed:
		case row.Value == nil:
			c.deleted = append(c.deleted, t.names[i])
		case t.exists[i]:
			c.existing = append(c.existing, change{t.names[i], t.tids[i], row.Value, row.Until.UnixMicro()})
		default:
			c.created = append(c.created, change{t.names[i], tid{}, row.Value, row.Until.UnixMicro()})
		}
	}
	return c
}

// writes returns the statements that write what has changed.
func (e *engine) writes(c changes) (statements []string) {
	if len(c.existing) > 0 {
		statements = append(statements, e.insert(c.existing)+e.dialect.upsert)
	}
	if len(c.created) > 0 {
		statements = append(statements, e.insert(c.created))
	}
	if len(c.deleted) > 0 {
		statements = append(statements, "DELETE FROM "+e.table+" WHERE name IN ("+quoted(c.deleted)+")")
	}
	return statements
}

// insert returns a statement that creates rows, and fails if one exists.
func (e *engine) insert(rows []change) string {
	before, after, _ := strings.Cut(e.dialect.bytes, "%s")
	b := make([]byte, 0, 64+256*len(rows))
	b = append(b, "INSERT INTO "+e.table+" (name, value, until) VALUES "...)
	for i, row := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, "('"+row.name+"', "+before...)
		b = hex.AppendEncode(b, row.value)
		b = append(b, after+", "...)
		b = strconv.AppendInt(b, row.until, 10)
		b = append(b, ')')
	}
	return string(b)
}
