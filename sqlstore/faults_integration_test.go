//go:build integration

package sqlstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/sqlstore"
)

// A cutter is a proxy that cuts a connection once, when the client sends some text. If the server still gets the text, the client
// loses the connection no sooner than the server has answered: pgx asks the server by another connection to cancel what a
// lost one was doing.
type cutter struct {
	addr, server string

	mu    sync.Mutex
	text  string // "": none
	reach bool   // whether the server still gets the text
	cuts  int
}

func startCutter(t testing.TB, server string) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c := &cutter{addr: listener.Addr().String(), server: server}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go c.serve(client)
		}
	}()
	return c
}

// at has the next connection that sends the text cut.
func (c *cutter) at(text string, reach bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text, c.reach, c.cuts = text, reach, 0
}

func (c *cutter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

// cut reports whether a packet is the one to cut at, and whether the server gets it.
func (c *cutter) cut(packet []byte) (cut, reach bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.text == "" || !bytes.Contains(packet, []byte(c.text)) {
		return false, true
	}
	c.text = ""
	c.cuts++
	return true, c.reach
}

func (c *cutter) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	var lost atomic.Bool // whether the client gets no more answers
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		answer := make([]byte, 1<<16)
		for {
			n, err := server.Read(answer)
			if err != nil || lost.Load() {
				break
			}
			_, _ = client.Write(answer[:n])
		}
		_ = client.Close()
	}()
	packet := make([]byte, 1<<16)
	for {
		n, err := client.Read(packet)
		if err != nil {
			_ = server.Close()
			return
		}
		cut, reach := c.cut(packet[:n])
		lost.Store(cut)
		if reach {
			_, _ = server.Write(packet[:n])
		}
		if cut {
			if reach {
				<-answered
			}
			_ = server.Close()
			return
		}
	}
}

// testLostConnection loses connections before a transaction has written, and while it commits.
func testLostConnection(t *testing.T, db database, driver, dsn, addr, begin, commit string) {
	proxy := startCutter(t, addr)
	o := sqlstore.Options{Table: db.table(t), Timeout: time.Minute}
	store, direct := db.openBehind(t, driver, strings.Replace(dsn, addr, proxy.addr, 1)).open(t, o), db.open(t, o)
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Count: 100, Period: 24 * time.Hour}, Cost: 1}
	take(t, store, r)
	remaining := func() int64 {
		peek := r
		peek.Cost, peek.ID = 0, ""
		return take(t, direct, peek).Remaining
	}

	for _, reach := range []bool{false, true} {
		before := remaining()
		proxy.at(begin, reach)
		if d := take(t, store, r); !d.Allowed || proxy.count() != 1 || remaining() != before-1 {
			t.Errorf("lost at %s: %v after %d cuts, %d remain; want the unit granted on another connection, charged once", begin, d, proxy.count(), remaining())
		}
	}
	for _, reach := range []bool{false, true} {
		take(t, store, r) // a new connection lacks prepared statements at first
		before := remaining()
		proxy.at(commit, reach)
		_, err := store.Take(t.Context(), r)
		if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "may be charged") || proxy.count() != 1 {
			t.Errorf("lost at COMMIT: %v after %d cuts, want ErrUnavailable", err, proxy.count())
		}
		want := before
		if reach {
			want--
		}
		waitFor(t, fmt.Sprintf("%d units remain if the server gets COMMIT, %t", want, reach), func() (bool, any) {
			got := remaining()
			return got == want, got
		})
	}
	for i, reach := range []bool{false, true} {
		r.ID = ""
		take(t, store, r)
		before := remaining()
		r.ID = "id" + string(rune('0'+i))
		proxy.at(commit, reach)
		if _, err := store.Take(t.Context(), r); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("lost at COMMIT: %v, want ErrUnavailable", err)
		}
		if d := take(t, store, r); !d.Allowed || remaining() != before-1 {
			t.Errorf("repeated under its ID: %v, %d remain; want one unit charged of %d", d, remaining(), before)
		}
	}
}

func waitFor(t *testing.T, what string, condition func() (ok bool, got any)) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		ok, got := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after a minute, but %v", what, got)
		}
	}
}

func TestIntegrationPostgresLostConnection(t *testing.T) {
	db, server := openPostgres(t)
	const prepareNothing = "&default_query_exec_mode=exec" // so that the proxy sees the texts
	testLostConnection(t, db, "pgx", server.DSN+prepareNothing, server.Addr, "BEGIN", "COMMIT\x00")
	db.pipeline = nil
	testLostConnection(t, db, "pgx", server.DSN, server.Addr, "BEGIN", "; COMMIT")
}

func TestIntegrationMariaDBLostConnection(t *testing.T) {
	db, server := openMariaDB(t)
	testLostConnection(t, db, "mysql", server.DSN, server.Addr, "START TRANSACTION", "\x03COMMIT")
}

// rowNames returns the names of the rows in their order.
func rowNames(t *testing.T, db database, table string) (names []string) {
	t.Helper()
	rows, err := db.Query("SELECT name FROM " + table + " ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// Another program locks the rows of a TakeAll in the other order. The database breaks the deadlock at the cost of the
// store's transaction, which is repeated.
func testDeadlock(t *testing.T, db database, prepare, waiting string) {
	o := sqlstore.Options{Table: db.table(t), Timeout: time.Minute}
	store := db.open(t, o)
	limit := penstock.Limit{Count: 100, Period: 24 * time.Hour}
	rs := []penstock.Request{{Key: "a", Limit: limit, Cost: 1}, {Key: "b", Limit: limit, Cost: 1}}
	ds := make([]penstock.Decision, 2)
	if err := store.TakeAll(t.Context(), rs, ds); err != nil {
		t.Fatal(err)
	}
	names := rowNames(t, db, o.Table)
	other, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	exec := func(statement string) {
		t.Helper()
		if _, err := other.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	lock := func(name string) {
		t.Helper()
		exec("UPDATE " + o.Table + " SET until = until + 1 WHERE name = '" + name + "'")
	}
	exec(prepare)
	exec("BEGIN")
	for range 100 { // changes make the transaction one that a database would rather not roll back
		lock(names[1])
	}
	done := make(chan error)
	go func() { done <- store.TakeAll(t.Context(), rs, ds) }()
	waitFor(t, "the store waits for a row", func() (found bool, got any) {
		err := db.QueryRow(waiting).Scan(&found)
		return found, err
	})
	lock(names[0])
	exec("ROLLBACK")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i := range ds {
		if ds[i].Remaining != 98 || !ds[i].Allowed {
			t.Errorf("key %s: %v, want 98 remaining after two takes", rs[i].Key, ds[i])
		}
	}
}

func TestIntegrationPostgresDeadlock(t *testing.T) {
	db, _ := openPostgres(t, "deadlock_timeout=5s")
	testDeadlock(t, db, "SET deadlock_timeout = '10min'", "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
}

// The table innodb_trx would not do: it shows what it did until it has not been read for a tenth of a second.
func TestIntegrationMariaDBDeadlock(t *testing.T) {
	db, _ := openMariaDB(t)
	testDeadlock(t, db, "SELECT 1", "SELECT variable_value > 0 FROM information_schema.global_status WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'")
}

// A process that stops in a transaction does not keep its rows for longer than the timeout.
func TestIntegrationPostgresStoppedProcess(t *testing.T) {
	db, _ := openPostgres(t)
	o := sqlstore.Options{Table: db.table(t), Timeout: time.Second}
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Count: 100, Period: 24 * time.Hour}, Cost: 1}
	take(t, db.open(t, o), r)
	stopped, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stopped.Close() }()
	for _, statement := range append(sqlstore.Begin(sqlstore.PostgreSQL, &o), "UPDATE "+o.Table+" SET until = until") {
		if _, err := stopped.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	o.Timeout = time.Minute
	if d := take(t, db.open(t, o), r); d.Remaining != 98 {
		t.Errorf("%v, want 98 remaining", d)
	}
}

// A transaction that frees its rows before they are on disk has an error after they have changed.
func TestIntegrationPostgresErrorAfterCommit(t *testing.T) {
	db, server := openPostgres(t)
	db = db.openBehind(t, "pgx", server.DSN+"&default_query_exec_mode=exec") // a prepared statement would not notice
	store := db.open(t, sqlstore.Options{Table: db.table(t), Timeout: time.Minute})
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Count: 100, Period: 24 * time.Hour}, Cost: 1}
	take(t, store, r)
	rename := func(from, to string) {
		t.Helper()
		for _, last := range []string{"text", "bytea"} {
			if _, err := db.Exec("SET allow_system_table_mods = on; ALTER FUNCTION " + from + "(boolean, text, " + last + ") RENAME TO " + to); err != nil {
				t.Fatal(err)
			}
		}
	}
	rename("pg_logical_emit_message", "renamed")
	_, err := store.Take(t.Context(), r)
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "may be charged") {
		t.Errorf("%v, want ErrUnavailable that says that units may be charged", err)
	}
	rename("renamed", "pg_logical_emit_message")
	if d := take(t, store, r); d.Remaining != 97 {
		t.Errorf("%v, want 97 remaining after three takes", d)
	}
}

// What was granted is on disk, although its rows were free before.
func TestIntegrationPostgresGrantsSurviveKill(t *testing.T) {
	db, server := openPostgres(t, "wal_writer_delay=10s") // so that only the store waits for the disk
	store := db.open(t, sqlstore.Options{Table: db.table(t), Timeout: time.Minute})
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Count: 100, Period: 24 * time.Hour}, Cost: 1}
	for want := int64(99); want > 94; want-- {
		if d := take(t, store, r); d.Remaining != want {
			t.Fatalf("%v, want %d remaining", d, want)
		}
		server.Kill()
		server.Start(t)
	}
}
