// Command sql compares the store on databases with that on Redis. It starts its own servers, redis-server without
// persistence and the databases with their defaults, and prints Markdown.
//
//	go run ./sql                      # some minutes
//	go run ./sql -run processes      # some cases
//	go run ./sql -quick               # a few seconds, to see that it runs
//
// The results are ratios: medians over rounds in which the stores take turns, so that other load on the machine
// affects all of them alike. Every case verifies that all requests were granted, and at the end that the table holds
// what was granted.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

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

func main() {
	harness.RunIfChild(work)
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// callers is the number of concurrent callers, as in a busy server. Several processes share them.
const callers = 64

// A bench is one run.
type bench struct {
	*harness.Run
	places []place
	titles []string                     // of the cases that have run
	ratios map[[2]string]harness.Spread // by the store and the case
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{Run: harness.New("sql", stdout, stderr), ratios: map[[2]string]harness.Spread{}}
	b.TurnFlags("rounds", "round", harness.Turns{Rounds: 15, Turn: 400 * time.Millisecond}, harness.Turns{Rounds: 2, Turn: 20 * time.Millisecond})
	b.Settings = func() string {
		return fmt.Sprintf("%d callers, %d rounds of %s a store", callers, b.Rounds, b.Turn)
	}
	b.Prepare = func() { b.places = b.start() }
	keys := func() int { return b.Size(10_000, 200) }
	return b.Main(args, []harness.Case{
		{Name: "keys", Run: func() { b.compare(1, keys(), targets{rate: 0.4, p99: 4}) }},
		{Name: "hot", Run: func() { b.compare(1, 1, targets{rate: 0.8, p99: 4}) }},
		{Name: "processes", Run: func() { b.compare(4, 1, targets{rate: 0.2}) }},
		{Name: "processes-keys", Run: func() { b.compare(4, keys(), targets{}) }},
		{Name: "summary", Run: b.summary},
	})
}

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
