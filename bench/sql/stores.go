package main

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"

	_ "github.com/go-sql-driver/mysql"
	"github.com/prometheus/procfs"
	_ "modernc.org/sqlite"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/internal/sqltest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/sqlstore"
	"github.com/penstock-io/penstock/sqlstore/pgxpipeline"
)

// A place is where a store keeps its states: a driver of database/sql or redis, the data source, and the server's process, if
// there is one.
type place struct {
	name, driver, source string
	pid                  int
}

// processor returns the processor time that the server has used so far, with all its processes, in microseconds.
func (p place) processor() (micros float64) {
	if p.pid == 0 {
		return 0
	}
	for _, process := range harness.Must(procfs.AllProcs()) {
		if stat, err := process.Stat(); err == nil && (stat.PID == p.pid || stat.PPID == p.pid) {
			micros += 1e6 * stat.CPUTime()
		}
	}
	return micros
}

// start starts the servers. The first place is Redis, and the second the one that has targets.
func (b *bench) start() []place {
	redis := redistest.StartForTest(b, redistest.Options{})
	postgres := sqltest.StartPostgres(b)
	mariadb := sqltest.StartMariaDB(b)
	return []place{
		{"Redis", "redis", "redis://" + redis.Addr, redis.PID()},
		{"PostgreSQL", "pgx", postgres.DSN, postgres.PID()},
		{"PostgreSQL, synchronous_commit=off", "pgx", postgres.DSN + "&synchronous_commit=off", postgres.PID()},
		{"MariaDB", "mysql", mariadb.DSN, mariadb.PID()},
		{"SQLite", "sqlite", "file:" + filepath.Join(b.TempDir(), "penstock.db") + "?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(1000)", 0},
	}
}

var dialects = map[string]sqlstore.Dialect{"pgx": sqlstore.PostgreSQL, "mysql": sqlstore.MySQL, "sqlite": sqlstore.SQLite}

// open opens the store of a place, and creates its table.
func (p place) open() (store penstock.Store, closeStore func()) {
	ctx := context.Background()
	if p.driver == "redis" {
		s := harness.Must(redisstore.Open(ctx, p.source, &redisstore.Options{Timeout: timeout}))
		return s, s.Close
	}
	db := harness.Must(sql.Open(p.driver, p.source))
	db.SetMaxIdleConns(8)
	table := "penstock"
	if strings.Contains(p.source, "synchronous_commit") {
		table = "penstock_off"
	}
	harness.Check(sqlstore.Migrate(ctx, db, dialects[p.driver], table))
	s := harness.Must(sqlstore.New(db, dialects[p.driver], &sqlstore.Options{Timeout: timeout, Table: table, Pipeline: pgxpipeline.Send}))
	return s, func() { _ = db.Close() }
}
