package server

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/redisstore"
)

// Errors have the texts of the drivers. Ports are in some of them, and look like codes.
func TestSQLAdvice(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`ERROR: relation "penstock" does not exist (SQLSTATE 42P01)`:                                              "restore it instead",
		"Error 1146 (42S02): Table 'test.penstock' doesn't exist":                                                 "restore it instead",
		"SQL logic error: no such table: penstock (1)":                                                            "restore it instead",
		`ERROR: column "until" does not exist (SQLSTATE 42703)`:                                                   "another table",
		"Error 1054 (42S22): Unknown column 'until' in 'field list'":                                              "another table",
		"SQL logic error: no such column: until (1)":                                                              "another table",
		"ERROR: cannot execute SELECT FOR UPDATE in a read-only transaction (SQLSTATE 25006)":                     "want the primary",
		"Error 1290 (HY000): The MariaDB server is running with the --read-only option so it cannot execute this": "want the primary",
		"attempt to write a readonly database (8)":                                                                "file is read-only",
		"FATAL: sorry, too many clients already (SQLSTATE 53300)":                                                 "raise max_connections",
		"FATAL: the database system is starting up (SQLSTATE 57P03)":                                              "wait until",
		"ERROR: permission denied for table penstock (SQLSTATE 42501)":                                            "other",
		"failed to connect to `user=u database=d`: 127.0.0.1:53300 (localhost): tls error: server refused TLS":    "other",
		"failed to connect to `user=u database=d`: 127.0.0.1:25006 (localhost): failed SASL auth: wrong password": "other",
	} {
		if got := sqlAdvice(errors.New(text), "other"); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	if got := sqlAdvice(fmt.Errorf("timeout: %w", context.DeadlineExceeded), "other"); !strings.Contains(got, "locks the table") {
		t.Errorf("locked: got %q", got)
	}
}

// A file is the same with two slashes as without, also one that is relative, and a check creates none.
func TestCheckSQLFindsFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("data", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"sqlite:data/a.db", "sqlite://data/b.db", "sqlite://c.db"} {
		c := &Config{Store: url, SQLTimeout: time.Minute}
		for i, want := range []redisstore.FindingState{redisstore.Broken, redisstore.Works, redisstore.Works} {
			found, err := CheckSQL(t.Context(), c, i == 1)
			if err != nil || len(found) == 0 || found[0].State != want {
				t.Errorf("%s, create %t: got %v, %v, want %v", url, i == 1, found, err, want)
			}
			if _, err := os.Stat(sqliteFile(url)); i == 0 && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the check has created the file: %v", url, err)
			}
		}
	}
}

// Without --create a file of SQLite stays as it is, empty or not: opened by a daemon it would keep another kind of journal.
func TestCheckSQLChangesNoFileWithoutCreate(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{"empty": "", "of another program": "CREATE TABLE other (a)"} {
		path := filepath.Join(t.TempDir(), "a.db")
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.ExecContext(t.Context(), cmp.Or(statement, "SELECT 1"))
		if err = errors.Join(err, db.Close()); err == nil && statement == "" {
			err = os.WriteFile(path, nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(path)
		c, err := LoadConfig(map[string]string{"store": "sqlite:" + path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		found, err := CheckSQL(t.Context(), c, false)
		if err != nil || len(found) < 2 || found[1].What != "table" || found[1].Advice != missingAdvice {
			t.Errorf("%s: %+v, %v, want a missing table", name, found, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the file had %d bytes, and has others now, %d (%v)", name, len(before), len(after), err)
		}
	}
}
