package sqlstore

import (
	"context"
	"encoding/binary"
	"slices"
)

// A Query is one of a [Pipeline], with its arguments in PostgreSQL's binary format.
type Query struct {
	SQL  string
	Args [][]byte
}

// A Pipeline sends queries to PostgreSQL at once, and calls a function with each row of the last one, in binary format. It
// returns the first error, after which the server ignores the rest. The connection is what [sql.Conn.Raw] gives.
type Pipeline func(ctx context.Context, driverConn any, queries []Query, row func(values [][]byte)) error

// The object identifiers of PostgreSQL's types.
const (
	oidBytea  = 17
	oidBigint = 20
	oidText   = 25
	oidTID    = 27
)

// A tid is where a version of a row is. It does not move while the row is locked.
type tid [6]byte

// array returns an array in binary format.
func array[E any](oid uint32, elements []E, appendTo func(b []byte, element E) []byte) []byte {
	b := make([]byte, 0, 20+40*len(elements))
	for _, word := range [...]uint32{1, 0, oid, uint32(len(elements)), 1} { // dimensions, nulls, type, length, first index
		b = binary.BigEndian.AppendUint32(b, word)
	}
	for _, element := range elements {
		at := len(b)
		b = appendTo(append(b, 0, 0, 0, 0), element)
		binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	}
	return b
}

func textArray(names []string) []byte {
	return array(oidText, names, func(b []byte, name string) []byte { return append(b, name...) })
}

// send sends queries at once.
func (t *transaction) send(ctx context.Context, queries []Query, row func(values [][]byte)) error {
	return t.conn.Raw(func(driverConn any) error { return t.engine.pipeline(ctx, driverConn, queries, row) })
}

// lockAtOnce is [transaction.lock] that begins the transaction too, unless it has begun.
func (t *transaction) lockAtOnce(ctx context.Context, names []string) (micros int64, err error) {
	table := t.engine.table
	read := Query{`WITH locked AS (SELECT ctid, name, value FROM ` + table + ` WHERE name = ANY ($1::text[]) ORDER BY name FOR UPDATE)
SELECT ctid, name, value, 0::bigint FROM locked UNION ALL SELECT NULL, '', '', ` + postgresClock, [][]byte{textArray(names)}}
	queries := []Query{read}
	if !t.begun {
		queries = []Query{{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"}, {SQL: "SELECT " + postgresSettings(t.engine)}, read}
		t.begun = true
	}
	err = t.send(ctx, queries, func(row [][]byte) {
		micros = max(micros, int64(binary.BigEndian.Uint64(row[3])))
		if i, ok := slices.BinarySearch(t.names, string(row[1])); ok {
			t.tids[i], t.rows[i].Value, t.exists[i] = tid(row[0]), append([]byte{}, row[2]...), true
		}
	})
	return micros, err
}

// queries returns those that write what has changed. Rows that exist are found by their places.
func (c *changes) queries(table string) (queries []Query) {
	values := func(rows []change) [][]byte {
		return [][]byte{
			array(oidBytea, rows, func(b []byte, row change) []byte { return append(b, row.value...) }),
			array(oidBigint, rows, func(b []byte, row change) []byte { return binary.BigEndian.AppendUint64(b, uint64(row.until)) }),
		}
	}
	if len(c.existing) > 0 {
		places := array(oidTID, c.existing, func(b []byte, row change) []byte { return append(b, row.tid[:]...) })
		queries = append(queries, Query{`UPDATE ` + table + ` AS t SET value = new.value, until = new.until
FROM unnest($1::tid[], $2::bytea[], $3::bigint[]) AS new (place, value, until) WHERE t.ctid = new.place`, append([][]byte{places}, values(c.existing)...)})
	}
	if len(c.created) > 0 {
		names := array(oidText, c.created, func(b []byte, row change) []byte { return append(b, row.name...) })
		queries = append(queries, Query{
			`INSERT INTO ` + table + ` (name, value, until) SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[])`,
			append([][]byte{names}, values(c.created)...),
		})
	}
	if len(c.deleted) > 0 {
		queries = append(queries, Query{`DELETE FROM ` + table + ` WHERE name = ANY ($1::text[])`, [][]byte{textArray(c.deleted)}})
	}
	return queries
}
