package pgxpipeline_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/sqlstore"
	"github.com/penstock-io/penstock/sqlstore/pgxpipeline"
)

// What it sends is tested on real servers, by sqlstore.
func TestSendRefusesOtherDrivers(t *testing.T) {
	db, err := sql.Open("sqlite", "file::memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	store, err := sqlstore.New(db, sqlstore.PostgreSQL, &sqlstore.Options{Pipeline: pgxpipeline.Send})
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerMinute(1), Cost: 1})
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "not charged") || !strings.Contains(err.Error(), "want one of pgx") {
		t.Errorf("%v, want that the connection is not one of pgx", err)
	}
}
