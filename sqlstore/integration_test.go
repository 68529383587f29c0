//go:build integration

package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/sqltest"
	"github.com/penstock-io/penstock/sqlstore"
	"github.com/penstock-io/penstock/sqlstore/pgxpipeline"
)

func openPostgres(t testing.TB, settings ...string) (database, *sqltest.Server) {
	t.Helper()
	server := sqltest.StartPostgres(t, settings...)
	db, err := sql.Open("pgx", server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return database{db, sqlstore.PostgreSQL, pgxpipeline.Send}, server
}

func openMariaDB(t testing.TB, settings ...string) (database, *sqltest.Server) {
	t.Helper()
	server := sqltest.StartMariaDB(t, settings...)
	db, err := sql.Open("mysql", server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return database{DB: db, dialect: sqlstore.MySQL}, server
}

func TestIntegrationPostgresConforms(t *testing.T) {
	db, _ := openPostgres(t, "synchronous_commit=off")
	t.Run("pipeline", func(t *testing.T) {
		conform(t, db)
		scenarios(t, db)
	})
	db.pipeline = nil
	t.Run("statement by statement", func(t *testing.T) { scenarios(t, db) })
}

func TestIntegrationMariaDBConforms(t *testing.T) {
	db, _ := openMariaDB(t, "innodb-flush-log-at-trx-commit=0")
	conform(t, db)
	scenarios(t, db)
}

// Daemons that start together on an empty database all create the table.
func TestIntegrationPostgresMigrateAtOnce(t *testing.T) {
	db, _ := openPostgres(t)
	ctx := context.Background()
	first, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	statement, err := sqlstore.CreateTable(sqlstore.PostgreSQL, "at_once")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.ExecContext(ctx, statement); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() { second <- sqlstore.Migrate(ctx, db.DB, sqlstore.PostgreSQL, "at_once") }()
	for waiting := 0; waiting == 0; {
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// The table belongs to another user, who has granted what docs/sql.md lists.
func TestIntegrationPostgresOtherOwner(t *testing.T) {
	owner, server := openPostgres(t)
	table := owner.table(t)
	if _, err := owner.Exec("CREATE ROLE app LOGIN"); err != nil {
		t.Fatal(err)
	}
	app := owner.openBehind(t, "pgx", strings.Replace(server.DSN, "penstock@", "app@", 1))
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Count: 100, Period: 24 * time.Hour}, Cost: 1}
	if err := sqlstore.Migrate(t.Context(), app.DB, sqlstore.PostgreSQL, table); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("migrated without rights: %v", err)
	}
	_, err := app.open(t, sqlstore.Options{Table: table}).Take(t.Context(), r)
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "permission denied") || !strings.Contains(err.Error(), "not charged") {
		t.Errorf("taken without rights: %v", err)
	}
	if _, err := owner.Exec("GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + " TO app"); err != nil {
		t.Fatal(err)
	}
	if err := sqlstore.Migrate(t.Context(), app.DB, sqlstore.PostgreSQL, table); err != nil {
		t.Errorf("a table that exists: %v", err)
	}
	if d := take(t, app.open(t, sqlstore.Options{Table: table, Timeout: time.Minute}), r); d.Remaining != 99 {
		t.Errorf("%v, want 99 remaining", d)
	}
}

// openBehind opens another database/sql pool on a data source.
func (db database) openBehind(t testing.TB, driver, dsn string) database {
	t.Helper()
	var err error
	if db.DB, err = sql.Open(driver, dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Poolers that share connections need drivers that prepare nothing.
func TestIntegrationPostgresDriverModes(t *testing.T) {
	plain, server := openPostgres(t)
	for _, mode := range []string{"exec", "simple_protocol", "cache_describe", "describe_exec"} {
		db := plain.openBehind(t, "pgx", server.DSN+"&default_query_exec_mode="+mode)
		t.Run(mode, func(t *testing.T) { testStoresShareLimits(t, db) })
		db.pipeline = nil
		t.Run(mode+" statement by statement", func(t *testing.T) { testStoresShareLimits(t, db) })
	}
}

// PgBouncer gives each transaction another connection to the server.
func TestIntegrationPgBouncer(t *testing.T) {
	direct, server := openPostgres(t, "synchronous_commit=off")
	bouncer := sqltest.StartPgBouncer(t, server, "pool_mode=transaction")
	db := direct.openBehind(t, "pgx", bouncer.DSN+"&default_query_exec_mode=exec")
	t.Run("transaction mode", func(t *testing.T) { scenarios(t, db) })
	db.pipeline = nil
	t.Run("transaction mode, statement by statement", func(t *testing.T) { scenarios(t, db) })
	bouncer = sqltest.StartPgBouncer(t, server, "pool_mode=session")
	t.Run("session mode", func(t *testing.T) { scenarios(t, direct.openBehind(t, "pgx", bouncer.DSN)) })
}

// Another user of a connection may deallocate what it has prepared.
func TestIntegrationPostgresLostStatements(t *testing.T) {
	db, _ := openPostgres(t)
	db.SetMaxOpenConns(1)
	store := db.open(t, sqlstore.Options{Table: db.table(t), Timeout: time.Minute})
	r := penstock.Request{Key: "k", Limit: penstock.Limit{Count: 100, Period: 24 * time.Hour}, Cost: 1}
	for want := int64(99); want > 95; want-- {
		if d := take(t, store, r); d.Remaining != want {
			t.Errorf("%v, want %d remaining", d, want)
		}
		if _, err := db.Exec("DEALLOCATE ALL"); err != nil {
			t.Fatal(err)
		}
	}
}
