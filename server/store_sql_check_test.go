package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
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
