package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// A fleetMember is an engine with its observer, on a board in Redis and on a clock that the
// test moves.
type fleetMember struct {
	*observe.Observer
	t      *testing.T
	engine *engine.Engine
	log    *bytes.Buffer
}

// A fleetTest has the clock of its members.
type fleetTest struct {
	*testing.T
	url    string
	prefix string
	now    time.Time
	down   bool // whether Redis is
}

// A patientBoard gives a Redis that is not down more time than a query waits: on a busy machine
// a second may be too short.
type patientBoard struct {
	redisBoard
	test *fleetTest
}

func (b patientBoard) Notices(ctx context.Context) ([]observe.Notice, error) {
	if !b.test.down {
		ctx = context.WithoutCancel(ctx)
	}
	return b.redisBoard.Notices(ctx)
}

func (f *fleetTest) open() redisBoard {
	f.Helper()
	store, err := redisstore.Open(f.Context(), f.url, &redisstore.Options{Prefix: f.prefix, Timeout: time.Minute})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(store.Close)
	return redisBoard{store}
}

func (f *fleetTest) member(name string) *fleetMember {
	f.Helper()
	clock := func() time.Time { return f.now }
	keys := topkeys.New(&topkeys.Options{Now: clock, Counters: 64})
	m := &fleetMember{t: f.T, engine: engine.New(penstock.NewMemory(nil), &engine.Options{TopKeys: keys}), log: &bytes.Buffer{}}
	m.Observer = observe.New(m.engine, &observe.Options{
		Name: name, Version: "v1", TopKeys: keys, Board: patientBoard{f.open(), f}, Now: clock, Log: slog.New(slog.NewTextHandler(m.log, nil)),
		LatencyBounds: []float64{1},
		Listeners: func() []observe.ListenerState {
			return []observe.ListenerState{{Name: "http", Connections: 2, Latency: []uint64{1, 0}}}
		},
	})
	return m
}

// take takes n units of a key, of which three are granted.
func (m *fleetMember) take(n int, key string) {
	m.t.Helper()
	limit := requestlimits.Of(penstock.Per(3, time.Hour))
	for range n {
		if _, err := m.engine.Take(m.t.Context(), penstock.Request{Key: key, Limit: limit, Cost: 1}, func() bool { return true }); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *fleetMember) all() (*observe.Live, *observe.Top) {
	live := m.Live(m.t.Context(), observe.LiveQuery{Scope: observe.ScopeAll, Window: observe.TwoMinutes, Sort: "name", Rules: 10})
	return live, m.Top(m.t.Context(), observe.TopQuery{Scope: observe.ScopeAll, By: observe.ByAsked, N: 10})
}

// daemons returns the names, with a mark at those that are missing.
func daemons(all []observe.Daemon) string {
	var names []string
	for _, d := range all {
		name := d.Name
		if d.Missing {
			name += "!"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func onServerAndCluster(t *testing.T, test func(f *fleetTest)) {
	t.Run("server", func(t *testing.T) { test(onRedis(t)) })
	t.Run("cluster", func(t *testing.T) {
		cluster := redistest.StartCluster(t)
		test(newFleetTest(t, cluster.URL()))
	})
}

func newFleetTest(t *testing.T, url string) *fleetTest {
	return &fleetTest{T: t, url: url, prefix: rand.Text(), now: time.Unix(1_800_000_000, 0)}
}

func onRedis(t *testing.T) *fleetTest {
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return newFleetTest(t, "redis://"+server.Addr)
}

// A user who may do what the documentation says, and nothing else, is enough.
func TestBoardNeedsTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{})
	page, err := os.ReadFile("../docs/redis-servers.md")
	if err != nil {
		t.Fatal(err)
	}
	user := []string{"ACL", "SETUSER", "daemon", "on", ">pw", "~*", "-@all"}
	_, list, _ := strings.Cut(string(page), "~p*")
	list, _, _ = strings.Cut(list, "```")
	user = append(user, regexp.MustCompile(`\+\S+`).FindAllString(list, -1)...)
	redistest.MustCommand(t, server, user...)
	f := newFleetTest(t, "redis://daemon:pw@"+server.Addr)
	board := f.open()
	if n, err := board.Put(t.Context(), "a", []byte("summary")); n != 1 || err != nil {
		t.Errorf("%d daemons, %v", n, err)
	}
	if notices, err := board.Notices(t.Context()); err != nil || len(notices) != 1 || string(notices[0].Summary) != "summary" {
		t.Errorf("%v, %v", notices, err)
	}
	if err := board.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

// Every daemon answers for all of them, and says which are missing.
func TestDaemonsSeeEachOtherByRedis(t *testing.T) {
	t.Parallel()
	onServerAndCluster(t, func(f *fleetTest) {
		t := f.T
		a, b, c := f.member("a"), f.member("b"), f.member("c")
		a.take(5, "shared")
		a.take(1, "of a")
		b.take(4, "shared")
		c.take(2, "of c")
		f.now = f.now.Add(time.Second)
		for _, m := range []*fleetMember{a, b, c} {
			m.Tick()
			m.PublishOnce(f.Context())
		}
		for _, m := range []*fleetMember{a, b, c} {
			live, top := m.all()
			if got := daemons(live.Daemons) + ", " + daemons(top.Daemons); got != "a b c, a b c" {
				t.Errorf("daemons %s, want all three", got)
			}
			want := observe.Counts{Allowed: 9, Denied: 3}
			if live.Totals != want || live.Counts != want || live.Rates.Decisions != 12 || len(live.Rules) != 1 || live.Rules[0].Counts != want {
				t.Errorf("%+v, %+v, %+v, want %+v", live.Totals, live.Counts, live.Rates, want)
			}
			if n := len(live.Series.Denied); n == 0 || live.Series.Denied[n-1] != 3 {
				t.Errorf("series %v, want the denials in the last second", live.Series.Denied)
			}
			if l := live.Listeners; len(l) != 1 || l[0].Connections != 6 || l[0].Calls != 3 || l[0].P50 == nil {
				t.Errorf("listeners %+v", l)
			}
			if len(top.Keys) != 3 || top.Keys[0].Key != "shared" || top.Keys[0].Count != 9 || top.Total != 12 || top.Keys[1].Key != "of c" {
				t.Errorf("top keys %+v", top)
			}
		}
		if alone := a.Live(f.Context(), observe.LiveQuery{Scope: observe.ScopeDaemon, Window: observe.OneDay, Sort: "name"}); alone.Totals.Allowed != 4 || alone.Daemons != nil {
			t.Errorf("a alone: %+v", alone.Totals)
		}
		f.killOne(a)
	})
}

// killOne lets the summary of b expire.
func (f *fleetTest) killOne(a *fleetMember) {
	f.Helper()
	board := f.open()
	if _, err := board.redis.Eval(f.Context(), removeSummary, boardSummary+"b"); err != nil {
		f.Fatal(err)
	}
	f.now = f.now.Add(observe.PublishInterval)
	live, _ := a.all()
	if got := daemons(live.Daemons); got != "a b! c" || live.Totals.Allowed != 6 {
		f.Errorf("daemons %s, totals %+v, want b missing", got, live.Totals)
	}
	if err := board.Remove(f.Context(), "c"); err != nil {
		f.Fatal(err)
	}
	f.now = f.now.Add(observe.PublishInterval)
	if live, _ = a.all(); daemons(live.Daemons) != "a b!" {
		f.Errorf("daemons %s, want c gone", daemons(live.Daemons))
	}
}

func compressed(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.Bytes()
}

// Whatever another program writes to the board is ignored with one log line, costs bounded
// memory, and hides no daemon that is well.
func TestBoardIgnoresHostileSummaries(t *testing.T) {
	t.Parallel()
	f := onRedis(t)
	hostile := [][]byte{
		[]byte("x"), compressed("x"), compressed(`{}`), compressed(`{"Format":1}`), compressed(`{"Format":2}`),
		compressed(strings.Repeat(" ", 5<<20)), compressed(`{"Format":1,"Windows":{"2m":{"totals":{"allowed":18446744073709551615}}}}`),
		compressed(`{"Format":1,"Windows":{"2m":{"Series":{"step":1,"from":-5}}}}`),
		bytes.Repeat([]byte{0}, observe.MaxSummaryBytes+10),
	}
	a, b, board := f.member("a"), f.member("b"), f.open()
	for i, summary := range hostile {
		if _, err := board.Put(f.Context(), fmt.Sprint("evil", i), summary); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := board.Put(f.Context(), strings.Repeat("long", 100), []byte("x")); err != nil {
		t.Fatal(err)
	}
	b.take(4, "k")
	f.now = f.now.Add(time.Second)
	b.Tick()
	b.PublishOnce(f.Context()) // last, because it expires
	for range 2 {
		live, top := a.all()
		if live.Totals != (observe.Counts{Allowed: 3, Denied: 1}) || len(live.Daemons) != 11 || len(top.Keys) != 1 {
			t.Errorf("totals %+v of %s", live.Totals, daemons(live.Daemons))
		}
		f.now = f.now.Add(observe.PublishInterval)
	}
	if n := strings.Count(a.log.String(), `msg="summary of another daemon ignored" daemon=evil`); n != 9 {
		t.Errorf("%d log lines, want one for each:\n%s", n, a.log)
	}
}

// A crowd of names on the board does not grow it, and the newest are shown.
func TestBoardIsBounded(t *testing.T) {
	t.Parallel()
	f := onRedis(t)
	board := f.open()
	for i := range observe.MaxDaemons + 20 {
		if _, err := board.Put(f.Context(), fmt.Sprint("d", i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	notices, err := board.Notices(f.Context())
	if err != nil || len(notices) != observe.MaxDaemons {
		t.Errorf("%d notices, %v, want %d", len(notices), err, observe.MaxDaemons)
	}
	if time.Since(notices[0].Updated).Abs() > time.Hour || string(notices[0].Summary) != "x" {
		t.Errorf("got %+v", notices[0])
	}
}

// While Redis is down, a daemon answers for itself, and others go missing after a while.
func TestFleetWithoutRedis(t *testing.T) {
	t.Parallel()
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	f := &fleetTest{T: t, url: "redis://" + server.Addr, prefix: rand.Text(), now: time.Now()}
	a, b := f.member("a"), f.member("b")
	a.take(1, "k")
	b.take(1, "k")
	b.Tick()
	b.PublishOnce(t.Context())
	if live, _ := a.all(); live.Totals.Allowed != 2 {
		t.Errorf("totals %+v, want both", live.Totals)
	}
	server.Stop()
	f.down = true
	for range 2 {
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		a.PublishOnce(short)
		cancel()
	}
	if n := strings.Count(a.log.String(), "summary for other daemons not written"); n != 1 {
		t.Errorf("%d log lines about failed writes, want one:\n%s", n, a.log)
	}
	f.now = f.now.Add(observe.PublishInterval)
	if live, _ := a.all(); daemons(live.Daemons) != "a b" || live.Totals.Allowed != 2 {
		t.Errorf("at first: %s", daemons(live.Daemons))
	}
	f.now = f.now.Add(observe.SummaryExpiry)
	if live, _ := a.all(); daemons(live.Daemons) != "a b!" || live.Totals.Allowed != 1 {
		t.Errorf("later: %s", daemons(live.Daemons))
	}
}

func TestBoardScriptsPassCheckOfProxies(t *testing.T) {
	for _, s := range []*redisstore.Script{putSummary, listDaemon, daemonList, getSummary, removeSummary, unlistDaemon} {
		if refusal := redisproxy.CheckScript(s.Text, 60); refusal != "" {
			t.Errorf("%s: %s", s.Name, refusal)
		}
	}
}

// Every daemon learns how many there are, and grants its part of a limit while Redis is down.
func TestShareFollowsTheFleet(t *testing.T) {
	t.Parallel()
	f := onRedis(t)
	board := f.open()
	for i, want := range []int{1, 2, 3, 3} {
		if n, err := board.Put(f.Context(), fmt.Sprint("d", i%3), []byte("x")); err != nil || n != want {
			t.Fatalf("after %d summaries: got %d daemons, %v, want %d", i+1, n, err, want)
		}
	}
	if err := board.Remove(f.Context(), "d0"); err != nil {
		t.Fatal(err)
	}
	if n, err := board.Put(f.Context(), "d1", []byte("x")); err != nil || n != 2 {
		t.Errorf("after one has left: got %d daemons, %v, want 2", n, err)
	}

	s := &Server{config: &Config{Nodes: 2}, log: slog.New(slog.DiscardHandler), lease: penstock.WithLease(penstock.NewMemory(nil), nil)}
	for _, c := range []struct {
		daemons int
		want    float64
	}{{1, 0.5}, {2, 0.5}, {5, 0.2}, {4, 0.25}, {0, 0.5}} {
		s.setDaemons(c.daemons)
		if _, share := s.onStoreFailure(penstock.Per(100, time.Minute)); share != c.want {
			t.Errorf("%d daemons, at least 2: got a share of %v, want %v", c.daemons, share, c.want)
		}
	}
}

// A daemon that starts beside others has their number from its first summary on.
func TestServersCountEachOther(t *testing.T) {
	t.Parallel()
	f := onRedis(t)
	for i := range 3 {
		c, err := LoadConfig(map[string]string{
			"store": f.url, "name": fmt.Sprint("d", i), "http": "127.0.0.1:0", "grpc": "", "resp": "", "admin": "", "redis-timeout": "30s",
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(t.Context(), c, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		redistest.WaitFor(t, "the daemon counts all", func() bool { return s.nodes() == i+1 })
	}
}
