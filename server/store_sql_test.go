package server_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server"
)

func sqliteFile(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "penstock.db") }

// lockSQLite keeps all other connections from writing to a database until the returned function is called.
func lockSQLite(t *testing.T, store string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite", strings.TrimPrefix(store, "sqlite:"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		_ = db.Close()
	}
}

func TestServerSQLKeepsCountersOverARestart(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"store": sqliteFile(t), "sql-timeout": "30s"}
	d := start(t, settings)
	if source, allowed := d.take("k", "5/24h", "3"); source != "store" || !allowed {
		t.Errorf("first: %s, %v", source, allowed)
	}
	d.end()
	if d = start(t, settings); d.remaining("k", "5/24h") != "2" {
		t.Errorf("after a restart: %s left, want 2", d.remaining("k", "5/24h"))
	}
	if !d.log.has("of this daemon alone") {
		t.Errorf("the log does not say what SQL does not share:\n%s", d.log)
	}
}

func TestServerDecidesWhileSQLIsUnavailable(t *testing.T) {
	t.Parallel()
	store := sqliteFile(t)
	d := start(t, map[string]string{"store": store, "sql-timeout": "50ms"})
	d.await("decided by the store", func() bool { source, _ := d.take("before", "1000/1h", "1"); return source == "store" })
	unlock := lockSQLite(t, store)
	degraded := func() bool {
		_, body := get(t, "http://"+d.addr("admin")+"/readyz")
		return strings.Contains(body, `"degraded": true`) && strings.Contains(body, "sqlite unavailable")
	}
	d.await("decided without the store", func() bool { source, _ := d.take("k", "1000/1h", "1"); return source == "fallback" })
	d.await("degraded", degraded)
	d.await("logged", func() bool { return d.log.has("SQLite unavailable") })
	d.await("counted", func() bool { return d.metric("penstock_degraded") == "1" })
	unlock()
	d.await("decided by the store again", func() bool {
		source, _ := d.take("k", "1000/1h", "1")
		return source == "store" && !degraded() && d.log.has("SQLite available again")
	})
}

func TestServerRefusesSQLThatCannotWork(t *testing.T) {
	for _, test := range []struct {
		name, store, table, want string
	}{
		{"no file", "sqlite:", "penstock", "want sqlite:FILE"},
		{"file with parameters", "sqlite:a?mode=ro", "penstock", "want sqlite:FILE"},
		{"no directory", "sqlite:" + filepath.Join(t.TempDir(), "none", "a"), "penstock", "unable to open"},
		{"table", sqliteFile(t), "a; DROP TABLE b", "table"},
		{"mysql", "mysql://user:secret@host:x/db", "penstock", "mysql://user:password@host"},
		{"mysql parameter", "mysql://user:secret@host/db?tls=none", "penstock", "unknown config name"},
		{"scheme", "oracle://host", "penstock", "postgres://"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := server.LoadConfig(map[string]string{"store": test.store, "sql-table": test.table}, nil)
			if err == nil {
				_, err = server.New(t.Context(), c, nil)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestServerStartsWhilePostgreSQLIsDown(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"store": "postgres://penstock:secret@127.0.0.1:1/penstock", "on-store-failure": "deny"})
	if source, allowed := d.take("k", "5/24h", "1"); source != "fallback" || allowed {
		t.Errorf("%s, %v", source, allowed)
	}
	d.await("logged", func() bool { return d.log.has("PostgreSQL unavailable") })
	if d.log.has("secret") {
		t.Errorf("the log has the password:\n%s", d.log)
	}
}
