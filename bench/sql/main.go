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
	"encoding/json"
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
	b.Settings = func() string { return fmt.Sprintf("%d callers, %d rounds of %s a store", callers, b.Rounds, b.Turn) }
	b.Prepare = func() { b.places = b.start() }
	keys := func() int { return b.Size(10_000, 200) }
	named := func(begin string) string { return begin + harness.Thousands(keys()) + " keys" }
	return b.Main(args, []harness.Case{
		{Name: "keys", Run: func() { b.compare(named("1 process, "), 1, keys(), targets{rate: 0.4, p99: 4}) }},
		{Name: "hot", Run: func() { b.compare("1 process, one key", 1, 1, targets{rate: 0.8, p99: 4}) }},
		{Name: "processes", Run: func() { b.compare("4 processes, one key", 4, 1, targets{rate: 0.2}) }},
		{Name: "processes-keys", Run: func() { b.compare(named("4 processes, "), 4, keys(), targets{}) }},
		{Name: "summary", Run: b.summary},
	})
}

// A place is where a store keeps its states: a driver of database/sql or redis, the data source, and the server's process, if
// there is one.
type place struct {
	Name, Driver, Source string
	PID                  int
}

// processor returns the processor time that the server has used so far, with all its processes, in microseconds.
func (p place) processor() (micros float64) {
	if p.PID == 0 {
		return 0
	}
	for _, process := range harness.Must(procfs.AllProcs()) {
		if stat, err := process.Stat(); err == nil && (stat.PID == p.PID || stat.PPID == p.PID) {
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
	if p.Driver == "redis" {
		s := harness.Must(redisstore.Open(ctx, p.Source, &redisstore.Options{Timeout: timeout}))
		return s, s.Close
	}
	db := harness.Must(sql.Open(p.Driver, p.Source))
	db.SetMaxIdleConns(8)
	table := "penstock"
	if strings.Contains(p.Source, "synchronous_commit") {
		table = "penstock_off"
	}
	harness.Check(sqlstore.Migrate(ctx, db, dialects[p.Driver], table))
	s := harness.Must(sqlstore.New(db, dialects[p.Driver], &sqlstore.Options{Timeout: timeout, Table: table, Pipeline: pgxpipeline.Send}))
	return s, func() { _ = db.Close() }
}

// timeout only detects hangs.
const timeout = time.Minute

// ample is a limit that no key of a run reaches, and that hardly refills during it.
var ample = penstock.PerHour(1000).WithBurst(100_000_000)

// targets are the least rate and the most latency of PostgreSQL, compared with Redis. Zero means none.
type targets struct{ rate, p99 float64 }

// A task is what one process does.
type task struct {
	place
	Keys, Callers int
}

// compare measures the stores of all places, with callers in so many processes.
func (b *bench) compare(title string, processes, keys int, want targets) {
	var all []*harness.Contender
	for _, p := range b.places {
		if processes > 1 && p.Driver == "sqlite" {
			continue // which is for one
		}
		all = append(all, b.contender(p, processes, keys))
	}
	b.Logf("%s: %d rounds of %s for each of %d stores", title, b.Rounds, b.Turn, len(all))
	harness.WarmUp(all...)
	harness.TakeTurns(b.Rounds, all...)
	t := b.Table(fmt.Sprintf("%s, %d callers in all: medians of the rounds, in brackets the 10th to the 90th percentile", title, callers),
		"store", "thousand calls a second", "to Redis", "p50, ms", "p99, ms", "to Redis", "program µs a call", "server µs a call")
	redis, postgres := all[0], all[1]
	for _, c := range all {
		row := append([]any{c.Name, harness.Decimals(1)(c.Median("rate") / 1000), c.To(redis, "rate")}, c.Medians(2, "p50", "p99")...)
		t.Row(append(append(row, c.To(redis, "p99")), c.Medians(1, "program", "server")...)...)
		b.ratios[[2]string{c.Name, title}] = c.To(redis, "rate")
	}
	b.titles = append(b.titles, title)
	if want.rate > 0 {
		b.FindAtLeast("PostgreSQL, "+title, postgres.To(redis, "rate"), want.rate, "Redis's rate")
	}
	if want.p99 > 0 {
		b.FindAtMost("PostgreSQL, "+title+", p99", postgres.To(redis, "p99"), want.p99, "Redis's")
	}
}

// summary prints the table.
func (b *bench) summary() {
	t := b.Table(fmt.Sprintf("Decisions a second to Redis's, %d callers in all", callers), append([]string{"store"}, b.titles...)...)
	for _, p := range b.places[1:] {
		row := []any{p.Name}
		for _, title := range b.titles {
			row = append(row, b.ratios[[2]string{p.Name, title}])
		}
		t.Row(row...)
	}
}

// contender starts the processes of a place.
func (b *bench) contender(p place, processes, keys int) *harness.Contender {
	workers := make([]worker, processes)
	for i := range workers {
		workers[i] = b.startWorker(task{place: p, Keys: keys, Callers: callers / processes})
	}
	return &harness.Contender{Name: p.Name, Measure: func(c *harness.Contender) {
		results, before := make([]result, len(workers)), p.processor()
		_, err := harness.Concurrently(len(workers), func(i int) (err error) {
			results[i], err = workers[i](b.Turn)
			return err
		})
		harness.Check(err)
		var sum result
		for _, r := range results {
			sum.Rate += r.Rate
			sum.Calls += r.Calls
			sum.Processor += r.Processor
			sum.P50, sum.P99 = max(sum.P50, r.P50), max(sum.P99, r.P99)
		}
		c.Add("rate", sum.Rate)
		c.Add("p50", sum.P50)
		c.Add("p99", sum.P99)
		c.Add("program", sum.Processor/sum.Calls)
		c.Add("server", (p.processor()-before)/sum.Calls)
	}}
}

// A result is that of one turn of one process: calls a second, and milliseconds.
type result struct {
	Rate, P50, P99   float64
	Calls, Processor float64 // processor time of the process, in microseconds
}

// A worker is a process that takes turns.
type worker func(turn time.Duration) (result, error)

// startWorker starts a process for a task, and waits until it is ready.
func (b *bench) startWorker(t task) worker {
	cmd := harness.Child(string(harness.Must(json.Marshal(t))))
	in, out := harness.Must(cmd.StdinPipe()), harness.Must(cmd.StdoutPipe())
	harness.Check(cmd.Start())
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	turns, results := json.NewEncoder(in), json.NewDecoder(out)
	take := func(turn time.Duration) (r result, err error) {
		if err = turns.Encode(turn); err == nil {
			err = results.Decode(&r)
		}
		return r, err
	}
	harness.Must(take(0))
	return take
}

// work takes the turns that it reads, after each key was taken from once.
func work(text string) {
	var t task
	harness.Check(json.Unmarshal([]byte(text), &t))
	store, closeStore := t.open()
	defer closeStore()
	limiter, keys, next := harness.Must(penstock.New(store, ample)), make([]string, t.Keys), make([]int, t.Callers)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%015d", i)
	}
	take := func(key int) error {
		d, err := limiter.Allow(context.Background(), keys[key])
		if err != nil || !d.Allowed {
			return fmt.Errorf("%s: key %d: %v, %w", t.Name, key, d, err)
		}
		return nil
	}
	harness.Must(harness.Concurrently(t.Callers, func(g int) (err error) {
		for i := g; i < t.Keys && err == nil; i += t.Callers {
			err = take(i)
		}
		return err
	}))
	turns, results := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for turn, round := time.Duration(0), 0; turns.Decode(&turn) == nil; round++ {
		for g := range next {
			next[g] = g*t.Keys/t.Callers + round*7919
		}
		user, system := harness.Processor()
		begin := time.Now()
		all := harness.Must(harness.CallUntil(t.Callers, begin.Add(turn), func(g int) error {
			next[g]++
			return take(next[g] % t.Keys)
		}))
		calls, took := float64(len(all)), time.Since(begin)
		userAfter, systemAfter := harness.Processor()
		harness.Check(results.Encode(result{
			Calls: calls, Processor: userAfter - user + systemAfter - system, Rate: calls / took.Seconds(),
			P50: harness.Millis(harness.Quantile(all, 0.5)), P99: harness.Millis(harness.Quantile(all, 0.99)),
		}))
	}
}
