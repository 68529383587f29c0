//go:build integration

package server_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sqltest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server"
)

// Two daemons share a limit on PostgreSQL, decide by themselves while it is killed, and share what they had
// counted when it is back.
func TestIntegrationServersShareLimitsOnPostgreSQL(t *testing.T) {
	database := sqltest.StartPostgres(t)
	settings := map[string]string{"store": database.DSN, "sql-timeout": "2s", "nodes": "2"}
	a, b := start(t, settings), start(t, settings)
	const limit = "10/24h"
	for _, d := range []*daemon{a, b} {
		if source, allowed := d.take("shared", limit, "3"); source != "store" || !allowed {
			t.Errorf("%s, %v", source, allowed)
		}
	}
	if left := a.remaining("shared", limit); left != "4" {
		t.Errorf("%s left, want 4", left)
	}
	database.Kill()
	a.await("decided without the store", func() bool { source, _ := a.take("other", "1000/1h", "1"); return source == "fallback" })
	a.await("logged", func() bool { return a.log.has("PostgreSQL unavailable") })
	database.Start(t)
	for _, d := range []*daemon{a, b} {
		d.await("decided by the store again", func() bool {
			source, _ := d.take("other", "1000/1h", "1")
			return source == "store"
		})
		if left := d.remaining("shared", limit); left != "4" {
			t.Errorf("after a restart of the database: %s left, want 4", left)
		}
	}
}

func TestIntegrationServerOnMariaDB(t *testing.T) {
	database := sqltest.StartMariaDB(t)
	d := start(t, map[string]string{"store": database.URL, "sql-timeout": "10s"})
	if source, allowed := d.take("k", "10/24h", "3"); source != "store" || !allowed || d.remaining("k", "10/24h") != "7" {
		t.Errorf("%s, %v, %s left", source, allowed, d.remaining("k", "10/24h"))
	}
}

// CheckSQL tries what the server needs, with the rights of its user.
func TestIntegrationCheckSQLTriesRights(t *testing.T) {
	postgres := sqltest.StartPostgres(t)
	check := func(url, broken string) {
		t.Helper()
		c, err := server.LoadConfig(map[string]string{"store": url}, nil)
		if err != nil {
			t.Fatal(err)
		}
		found, err := server.CheckSQL(t.Context(), c, true)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %+v, %v", url, found, err)
		}
		for _, f := range found {
			if (f.State == redisstore.Broken) != (f.What == broken) || (f.Advice == "") != (f.State == redisstore.Works) || strings.Contains(f.Detail, "\n") {
				t.Errorf("%s: %+v, want broken: %q, with an advice, on one line", url, f, broken)
			}
		}
	}
	check(sqltest.StartMariaDB(t).URL, "")
	check(postgres.URL, "")
	db, err := sql.Open("pgx", postgres.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	taker := strings.Replace(postgres.URL, "penstock@", "taker@", 1)
	check(taker, "connection")
	for _, step := range []struct{ statement, broken string }{
		{"CREATE ROLE taker LOGIN", "table"},
		{"GRANT SELECT ON penstock TO taker", "takes"},
		{"GRANT INSERT, UPDATE, DELETE ON penstock TO taker", ""},
	} {
		if _, err := db.ExecContext(t.Context(), step.statement); err != nil {
			t.Fatal(err)
		}
		check(taker, step.broken)
	}
}
