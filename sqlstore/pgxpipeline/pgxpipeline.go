// Package pgxpipeline lets a store on PostgreSQL send several queries at once, through the driver pgx. It takes a transaction
// two round trips instead of three, and about a fifth less of the processors' time.
//
//	db, err := sql.Open("pgx", "postgres://user@host/database")
//	store, err := sqlstore.New(db, sqlstore.PostgreSQL, &sqlstore.Options{Pipeline: pgxpipeline.Send})
//
// A program with a pgxpool.Pool opens it by stdlib.OpenDBFromPool.
package pgxpipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/penstock-io/penstock/sqlstore"
)

// Send is a [sqlstore.Pipeline] for connections of pgx. Each query is prepared once for a connection, unless the data source has another
// default_query_exec_mode than cache_statement.
func Send(ctx context.Context, driverConn any, queries []sqlstore.Query, row func(values [][]byte)) error {
	c, ok := driverConn.(*stdlib.Conn)
	if !ok {
		return fmt.Errorf("pgxpipeline: a connection of type %T, want one of pgx", driverConn)
	}
	b := batch{pipeline: c.Conn().PgConn().StartPipeline(ctx), queries: queries, statements: statementsOf(c.Conn())}
	b.send()
	err := b.pipeline.Sync()
	if err == nil {
		err = b.receive(row)
	}
	err = cmp.Or(err, b.pipeline.Close())
	var failed *pgconn.PgError
	if errors.As(err, &failed) && failed.Code == "26000" { // another user of the connection has deallocated them
		clear(b.statements)
	}
	return err
}

// statements are those that a connection has prepared, by their text; nil if it prepares none.
type statements map[string]*pgconn.StatementDescription

func statementsOf(c *pgx.Conn) statements {
	const name = "penstock"
	known, ok := c.PgConn().CustomData()[name].(statements)
	if !ok {
		if c.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement { // a copy of everything, so look once
			known = statements{}
		}
		c.PgConn().CustomData()[name] = known
	}
	return known
}

// A batch is what is sent at once.
type batch struct {
	pipeline   *pgconn.Pipeline
	queries    []sqlstore.Query
	statements statements
	preparing  []string // texts of the statements that are sent to be prepared
}

var binary = []int16{pgx.BinaryFormatCode} // of all arguments, or of all columns

func (b *batch) send() {
	for _, q := range b.queries {
		formats := binary[:min(len(q.Args), 1)]
		if b.statements == nil {
			b.pipeline.SendQueryParams(q.SQL, q.Args, nil, formats, binary)
			continue
		}
		if s := b.statements[q.SQL]; s != nil {
			b.pipeline.SendQueryStatement(s, q.Args, formats, binary)
			continue
		}
		name := "penstock_" + strconv.Itoa(len(b.statements)+len(b.preparing))
		b.pipeline.SendPrepare(name, q.SQL, nil)
		b.pipeline.SendQueryPrepared(name, q.Args, formats, binary)
		b.preparing = append(b.preparing, q.SQL)
	}
}

// receive reads all results, and gives the rows of the last one to a function.
func (b *batch) receive(row func(values [][]byte)) error {
	for answered := 0; answered < len(b.queries); {
		result, err := b.pipeline.GetResults()
		if err != nil {
			return err
		}
		switch r := result.(type) {
		case *pgconn.StatementDescription:
			r.Name, r.SQL = "penstock_"+strconv.Itoa(len(b.statements)), b.preparing[0]
			b.statements[r.SQL], b.preparing = r, b.preparing[1:]
		case *pgconn.ResultReader:
			for answered++; r.NextRow(); {
				if answered == len(b.queries) {
					row(r.Values())
				}
			}
			if _, err := r.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}
