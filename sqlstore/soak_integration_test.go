//go:build integration

package sqlstore_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/sqlstore"
)

var soakTime = flag.Duration("sqlstore.soak", 2*time.Second, "how long to run the soak test")

// A soak is traffic on a table: keys that stay, which are charged over and over, and keys that come, are charged once and expire.
type soak struct {
	store  *sqlstore.Store
	stays  [2000]atomic.Int64 // what was granted
	comes  atomic.Int64
	calls  atomic.Int64
	failed atomic.Pointer[error]
}

var (
	soakStays = penstock.Limit{Count: 1_000_000_000, Period: 1000 * time.Hour, Algorithm: penstock.FixedWindow}
	soakComes = penstock.Limit{Count: 10, Period: 5 * time.Second}
)

// run calls until the context ends, by so many callers.
func (s *soak) run(ctx context.Context, callers int) {
	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			for ctx.Err() == nil && s.failed.Load() == nil {
				s.call()
			}
		})
	}
	running.Wait()
}

func (s *soak) call() {
	key := rand.IntN(len(s.stays))
	r := penstock.Request{Key: fmt.Sprint("stays", key), Limit: soakStays, Cost: 1}
	comes := s.calls.Add(1)%10 == 0
	if comes {
		r = penstock.Request{Key: fmt.Sprint("comes", s.comes.Add(1)), Limit: soakComes, Cost: 1, ID: "once"}
	}
	d, err := s.store.Take(context.Background(), r)
	switch {
	case err != nil || !d.Allowed:
		err = fmt.Errorf("%s: %v, %w", r.Key, d, err)
		s.failed.CompareAndSwap(nil, &err)
	case !comes:
		s.stays[key].Add(1)
	}
}

// soakReport is a line of the report.
const soakReport = `SELECT format('| %s | %s | %s | %s | %s%% | %s |', (SELECT count(*) FROM TABLE),
	pg_size_pretty(pg_table_size(relid)), pg_size_pretty(pg_indexes_size(relid)), n_dead_tup,
	round(100.0 * n_tup_hot_upd / greatest(n_tup_upd, 1), 1), autovacuum_count)
FROM pg_stat_user_tables WHERE relname = 'TABLE'`

// A table under traffic for ten minutes keeps its size, and what was charged:
//
//	make soak-sql SOAK=10m
func TestIntegrationPostgresSoak(t *testing.T) {
	db, _ := openPostgres(t)
	o := sqlstore.Options{Table: db.table(t), Timeout: time.Minute}
	s := &soak{store: db.open(t, o)}
	ctx, cancel := context.WithTimeout(t.Context(), *soakTime)
	defer cancel()
	var sizes []int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx, 32)
	}()
	t.Log("| decisions | rows | table | index | dead rows | HOT | autovacuums |")
	for tick := time.NewTicker(*soakTime / 20); ctx.Err() == nil; {
		select {
		case <-tick.C:
			var line string
			var size int64
			if err := db.QueryRow(strings.ReplaceAll(soakReport, "TABLE", o.Table)).Scan(&line); err != nil {
				t.Fatal(err)
			}
			if err := db.QueryRow("SELECT pg_total_relation_size('" + o.Table + "')").Scan(&size); err != nil {
				t.Fatal(err)
			}
			t.Logf("| %d %s", s.calls.Load(), line)
			sizes = append(sizes, size)
		case <-ctx.Done():
		}
	}
	<-done
	if err := s.failed.Load(); err != nil {
		t.Fatal(*err)
	}
	for i := range s.stays {
		granted := s.stays[i].Load()
		if d := take(t, s.store, penstock.Request{Key: fmt.Sprint("stays", i), Limit: soakStays}); d.Remaining != soakStays.Count-granted {
			t.Errorf("key %d: %d remain after %d were granted", i, d.Remaining, granted)
		}
	}
	if half, end := sizes[len(sizes)/2], sizes[len(sizes)-1]; *soakTime >= 5*time.Minute && end > half*5/4 {
		t.Errorf("table and index have %d bytes, %d after half of the time: they grow", end, half)
	}
}
