//go:build integration

package sqlstore_test

import (
	"context"
	"database/sql"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/penstock-io/penstock/internal/sqltest"
	"github.com/penstock-io/penstock/sqlstore"
)

func openPostgres(t testing.TB, settings ...string) (database, *sqltest.Server) {
	t.Helper()
	server := sqltest.StartPostgres(t, settings...)
	db, err := sql.Open("pgx", server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return database{db, sqlstore.PostgreSQL}, server
}

func openMariaDB(t testing.TB, settings ...string) (database, *sqltest.Server) {
	t.Helper()
	server := sqltest.StartMariaDB(t, settings...)
	db, err := sql.Open("mysql", server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return database{db, sqlstore.MySQL}, server
}

func TestIntegrationPostgresConforms(t *testing.T) {
	db, _ := openPostgres(t, "synchronous_commit=off")
	conform(t, db)
	scenarios(t, db)
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

// Poolers that share connections need drivers that prepare nothing.
func TestIntegrationPostgresDriverModes(t *testing.T) {
	plain, server := openPostgres(t)
	for _, mode := range []string{"exec", "simple_protocol", "cache_describe", "describe_exec"} {
		db, err := sql.Open("pgx", server.DSN+"&default_query_exec_mode="+mode)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		t.Run(mode, func(t *testing.T) { testStoresShareLimits(t, database{db, plain.dialect}) })
	}
}
