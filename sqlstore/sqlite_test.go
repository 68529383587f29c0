package sqlstore_test

import "testing"

func TestSQLiteConforms(t *testing.T) { conform(t, openSQLite(t)) }

func TestSQLite(t *testing.T) { scenarios(t, openSQLite(t)) }
