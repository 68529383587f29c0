package server

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/sqlstore"
	"github.com/penstock-io/penstock/sqlstore/pgxpipeline" // and the driver "pgx"
)

// sqlSchemes are the databases that can be the store, by the scheme of its URL.
var sqlSchemes = map[string]sqlScheme{
	"postgres":   {sqlstore.PostgreSQL, "pgx", postgresSource},
	"postgresql": {sqlstore.PostgreSQL, "pgx", postgresSource},
	"mysql":      {sqlstore.MySQL, "mysql", mysqlSource},
	"sqlite":     {sqlstore.SQLite, "sqlite", sqliteSource},
}

type sqlScheme struct {
	dialect sqlstore.Dialect
	driver  string
	source  func(url string) (string, error) // in the driver's own form
}

// sqlScheme returns the database of --store, if it is one.
func (c *Config) sqlScheme() (sqlScheme, bool) {
	name, _, _ := strings.Cut(c.Store, ":")
	scheme, ok := sqlSchemes[name]
	return scheme, ok
}

// postgresSource returns the URL itself, which the driver would otherwise read at the first connection.
func postgresSource(text string) (string, error) {
	_, err := pgx.ParseConfig(text)
	return text, err
}

// mysqlSource turns mysql://user:password@host:port/database?parameters around.
func mysqlSource(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("want mysql://user:password@host:port/database") // err may contain the password
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Params = map[string]string{}
	for name, values := range u.Query() {
		c.Params[name] = values[0]
	}
	source := c.FormatDSN()
	_, err = mysql.ParseDSN(source)
	return source, err
}

// sqliteSource adds what a file needs that several connections write: a log beside it. The
// operating system writes that to the disk when it likes, so a loss of power can lose the last units.
func sqliteSource(text string) (string, error) {
	file := sqliteFile(text)
	if file == "" || strings.ContainsAny(file, "?#%") {
		return "", errors.New("want sqlite:FILE")
	}
	return "file:" + file + "?" + keptPragma + "_pragma=synchronous(NORMAL)&_pragma=busy_timeout(1000)", nil
}

// sqliteFile returns the file of a URL, which may be relative: sqlite:FILE or sqlite://FILE.
func sqliteFile(text string) string {
	return strings.TrimPrefix(strings.TrimPrefix(text, "sqlite:"), "//")
}

// A sqlServer is a database as a monitor sees it. It is one shard: what a server loses, it loses as a whole.
type sqlServer struct{ *sqlstore.Store }

func (sqlServer) Shards() int                                       { return 1 }
func (sqlServer) ShardOf(string) int                                { return 0 }
func (sqlServer) Refusals() (count uint64, last error)              { return 0, nil }
func (sqlServer) Warnings() []string                                { return nil }
func (sqlServer) RunIDs(context.Context) (map[string]string, error) { return nil, nil }

// openSQL returns a store on a database that also decides while it is unavailable.
func (s *Server) openSQL(ctx context.Context) (penstock.Store, error) {
	c := s.config
	scheme, _ := c.sqlScheme()
	db, err := openDatabase(c.Store, scheme)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.origin("store"), err)
	}
	s.closers = append(s.closers, func(context.Context) error { return db.Close() })
	if err := s.migrate(ctx, db, scheme.dialect); err != nil {
		return nil, fmt.Errorf("%s: %w", c.origin("store"), err)
	}
	store, err := sqlstore.New(db, scheme.dialect, &sqlstore.Options{Table: c.SQLTable, Timeout: c.SQLTimeout, Pipeline: pgxpipeline.Send})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.origin("sql-table"), err)
	}
	s.log.Info("overrides, penalties and the list of daemons are of this daemon alone: only Redis shares them", "store", scheme.dialect.String())
	if err := s.openOverrides(ctx, nil); err != nil {
		return nil, err
	}
	return s.wrapStore(ctx, sqlServer{store}, scheme.dialect.String()), nil
}

// maxSQLConnections is enough for the transactions in flight, the deletion of expired rows and migration.
const maxSQLConnections = 8

func openDatabase(text string, scheme sqlScheme) (*sql.DB, error) {
	source, err := scheme.source(text)
	if err != nil {
		return nil, err
	}
	return openSource(scheme.driver, source)
}

// keptPragma is the one that a file of SQLite keeps.
const keptPragma = "_pragma=journal_mode(WAL)&"

func openSource(driver, source string) (*sql.DB, error) {
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(maxSQLConnections)
	db.SetMaxIdleConns(maxSQLConnections)
	return db, nil
}

// migrate creates the table, now or in the background once the database answers. An error that the database
// itself returns, such as a wrong password, does not go away.
func (s *Server) migrate(ctx context.Context, db *sql.DB, d sqlstore.Dialect) error {
	try := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, s.config.connectTimeout())
		defer cancel()
		return sqlstore.Migrate(ctx, db, d, s.config.SQLTable)
	}
	err := try(ctx)
	if err == nil || !isOutage(err) {
		return err
	}
	s.background = append(s.background, func(ctx context.Context) {
		for isOutage(err) {
			if monotime.Sleep(ctx, checkInterval) != nil {
				return
			}
			err = try(ctx)
		}
		if err != nil {
			s.log.Error("the table of the store cannot be created", "err", err)
		}
	})
	return nil
}

// isOutage reports whether an error came from the network, or from a server that starts or stops.
func isOutage(err error) bool {
	var postgres interface{ SQLState() string }
	var mysqlError *mysql.MySQLError
	switch {
	case errors.As(err, &postgres):
		return strings.HasPrefix(postgres.SQLState(), "57P")
	case errors.As(err, &mysqlError):
		return mysqlError.Number == 1053 || mysqlError.Number == 1040 // shutdown, too many connections
	}
	var network interface{ Timeout() bool }
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, mysql.ErrInvalidConn)
}
