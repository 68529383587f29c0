//go:build integration

package sqlstore_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/sqltest"
	"github.com/penstock-io/penstock/sqlstore"
	"github.com/penstock-io/penstock/sqlstore/pgxpipeline"
)

// A clientTask is what a process of a test does: it takes units of one key until it is killed, and writes a line for each
// unit that it was granted, and for each error.
type clientTask struct {
	Driver, Source, Table string
	Dialect               sqlstore.Dialect
}

const clientVariable = "SQLSTORE_TEST_CLIENT"

func TestMain(m *testing.M) {
	if text := os.Getenv(clientVariable); text != "" {
		var task clientTask
		if err := json.Unmarshal([]byte(text), &task); err != nil {
			panic(err)
		}
		task.run()
	}
	os.Exit(m.Run())
}

var killedLimit = penstock.Limit{Count: 1_000_000_000, Period: 1000 * time.Hour, Algorithm: penstock.FixedWindow}

const clientCallers = 4

func (task clientTask) run() {
	db, err := sql.Open(task.Driver, task.Source)
	if err != nil {
		panic(err)
	}
	store, err := sqlstore.New(db, task.Dialect, &sqlstore.Options{Table: task.Table, Timeout: 2 * time.Second, Pipeline: pgxpipeline.Send})
	if err != nil {
		panic(err)
	}
	var running sync.WaitGroup
	for range clientCallers {
		running.Go(func() {
			for {
				d, err := store.Take(context.Background(), penstock.Request{Key: "k", Limit: killedLimit, Cost: 1})
				switch {
				case err != nil:
					fmt.Println("error", err)
				case d.Allowed:
					fmt.Println("granted")
				}
			}
		})
	}
	running.Wait()
}

// A killedClient is such a process.
type killedClient struct {
	command *exec.Cmd
	read    chan struct{}
}

func (task clientTask) start(t *testing.T, granted, uncertain *atomic.Int64) *killedClient {
	t.Helper()
	text, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	c := &killedClient{command: exec.Command(os.Args[0]), read: make(chan struct{})}
	c.command.Env = append(os.Environ(), clientVariable+"="+string(text))
	c.command.Stderr = os.Stderr
	out, err := c.command.StdoutPipe()
	if err == nil {
		err = c.command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			switch line := lines.Text(); {
			case line == "granted":
				granted.Add(1)
			case strings.Contains(line, "may be charged"):
				uncertain.Add(1)
			}
		}
	}()
	return c
}

func (c *killedClient) kill() {
	_ = c.command.Process.Kill()
	<-c.read
	_ = c.command.Wait()
}

// testKills kills and stops clients and the server, again and again. What was granted is charged, and hardly more: the calls
// in flight at a kill, and those whose errors say so, may or may not be.
func testKills(t *testing.T, db database, task clientTask, server *sqltest.Server) {
	task.Table, task.Dialect = db.table(t), db.dialect
	var granted, uncertain atomic.Int64
	clients := []*killedClient{task.start(t, &granted, &uncertain), task.start(t, &granted, &uncertain)}
	progress := func() {
		t.Helper()
		want := granted.Load() + 20
		waitFor(t, "units are granted", func() (bool, any) { return granted.Load() >= want, granted.Load() })
	}
	kills := int64(0)
	for range 3 {
		progress()
		clients[0].kill()
		kills++
		progress() // by the other one
		clients[0] = task.start(t, &granted, &uncertain)
		if server == nil {
			continue
		}
		server.Kill()
		server.Start(t)
		progress()
		stopped := clients[1].command.Process
		_ = stopped.Signal(syscall.SIGSTOP)
		progress()
		_ = stopped.Signal(syscall.SIGCONT)
	}
	for _, c := range clients {
		c.kill()
		kills++
	}
	waitFor(t, "the killed clients' transactions have ended", func() (bool, any) {
		d, err := db.open(t, sqlstore.Options{Table: task.Table}).Take(t.Context(), penstock.Request{Key: "k", Limit: killedLimit})
		charged := killedLimit.Count - d.Remaining
		most := granted.Load() + uncertain.Load() + clientCallers*kills
		return err == nil && charged >= granted.Load() && charged <= most, fmt.Sprintf("%d charged, %d granted, at most %d, %v", charged, granted.Load(), most, err)
	})
	t.Logf("%d granted, %d may be charged, %d kills", granted.Load(), uncertain.Load(), kills)
}

func TestIntegrationPostgresKills(t *testing.T) {
	db, server := openPostgres(t)
	testKills(t, db, clientTask{Driver: "pgx", Source: server.DSN}, server)
}

func TestIntegrationMariaDBKills(t *testing.T) {
	db, server := openMariaDB(t, "idle-transaction-timeout=1") // ends the transaction of a client that is stopped
	testKills(t, db, clientTask{Driver: "mysql", Source: server.DSN}, server)
}

func TestIntegrationSQLiteKills(t *testing.T) {
	db, source := openSQLiteFile(t)
	testKills(t, db, clientTask{Driver: "sqlite", Source: source}, nil)
}

// Calls end in time in whatever the transaction waits, and say what may have happened; later ones are exact.
func TestIntegrationPostgresDeadlines(t *testing.T) {
	db, _ := openPostgres(t)
	o := sqlstore.Options{Table: db.table(t), Timeout: 300 * time.Millisecond}
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Count: 100, Period: 24 * time.Hour}, Cost: 1}
	patient := o
	patient.Timeout = time.Minute
	take(t, db.open(t, patient), r)
	var held *sql.Conn
	hold := func(statement string) {
		t.Helper()
		var err error
		if held, err = db.Conn(t.Context()); err == nil {
			_, err = held.ExecContext(t.Context(), "BEGIN; "+statement)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	release := func() {
		if _, err := held.ExecContext(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		_ = held.Close()
	}
	standby := func(name string) { // for which commits wait
		t.Helper()
		for _, statement := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + name + "'", "SELECT pg_reload_conf()"} {
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "the setting is read", func() (ok bool, got any) {
			err := db.QueryRow("SELECT current_setting('synchronous_standby_names') = '" + name + "'").Scan(&ok)
			return ok, err
		})
	}
	remaining := int64(99)
	for _, phase := range []struct {
		name       string
		begin, end func()
		charged    bool // certainly
	}{
		{"a connection", func() { db.SetMaxOpenConns(1); hold("SELECT 1") }, func() { release(); db.SetMaxOpenConns(0) }, false},
		{"a row", func() { hold("SELECT 1 FROM " + o.Table + " FOR UPDATE") }, release, false},
		{"the commit", func() { standby("none") }, func() { standby("") }, true},
	} {
		store := db.open(t, o)
		phase.begin()
		_, err := store.Take(t.Context(), r)
		if !errors.Is(err, penstock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("waiting for %s: %v, want ErrUnavailable after the deadline", phase.name, err)
		}
		uncertain := strings.Contains(err.Error(), "may be charged") // such as a lock that was granted at the last moment
		if phase.charged && !uncertain {
			t.Errorf("waiting for %s: %v, want that it may be charged", phase.name, err)
		}
		phase.end()
		waitFor(t, fmt.Sprintf("%d remained before waiting for %s, which ended with %v", remaining, phase.name, err), func() (bool, any) {
			d := take(t, db.open(t, patient), penstock.Request{Key: "k", Limit: r.Limit})
			ok := d.Remaining == remaining && !phase.charged || d.Remaining == remaining-1 && uncertain
			if ok {
				remaining = d.Remaining
			}
			return ok, d
		})
	}
}
