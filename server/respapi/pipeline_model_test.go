package respapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/server/engine"
)

// Every command of a pipeline is answered in its order, as if it were alone, whichever requests
// of a batch the store fails before or after it has carried them out.
func TestPipelineMatchesModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 12))
	failed, cases := 0, fixedseed.FewerUnderRace(400)
	for range cases {
		m := newPipelineModel(t, rng)
		for range 12 {
			m.clock.add(time.Duration(rng.IntN(20)) * time.Millisecond)
			m.send(1 + rng.IntN(6))
		}
		failed += m.failed
	}
	if failed < cases/4 {
		t.Errorf("the store failed %d commands, want many", failed)
	}
}

// A pipelineStore fails each request of a batch by itself, as one with shards does.
type pipelineStore struct {
	store penstock.Store
	rng   *rand.Rand
	ends  []requestEnd // of the requests of one pipeline, in their order
}

// A requestEnd says how a request to the store ended.
type requestEnd uint8

const (
	endedWell requestEnd = iota
	notSent
	responseLost
)

func (s *pipelineStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	end := requestEnd(max(s.rng.IntN(20)-17, 0))
	s.ends = append(s.ends, end)
	if end == notSent {
		return penstock.Decision{}, penstock.ErrUnavailable
	}
	d, err := s.store.Take(ctx, r)
	if end == responseLost {
		return penstock.Decision{}, penstock.ErrUnavailable
	}
	return d, err
}

func (s *pipelineStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) (first error) {
	for i := range rs {
		var err error
		if ds[i], err = s.Take(ctx, rs[i]); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// A pipelineModel is a connection beside a model of one window and one bucket, in milliseconds.
type pipelineModel struct {
	*testing.T
	rng    *rand.Rand
	clock  *fakeClock
	start  time.Time
	store  *pipelineStore
	conn   *conn
	failed int

	used, end int64               // of the window of 4 units in 40 ms
	ids       map[string][3]int64 // units, the end of their window or 0 once they were refunded, and when the ID is forgotten
	full      int64               // when the bucket of 3 units, one for each 10 s, is full
}

func newPipelineModel(t *testing.T, rng *rand.Rand) *pipelineModel {
	clock := newFakeClock()
	store := &pipelineStore{store: clock.memory(), rng: rng}
	s := must(New(engine.New(store, &engine.Options{RequestLimits: noCeilings}), nil))
	s.now, s.started = clock.now, clock.now()
	return &pipelineModel{T: t, rng: rng, clock: clock, start: clock.now(), store: store, conn: newFakeClient(s), ids: map[string][3]int64{}}
}

// A pipelineCommand is a command, and its reply where the store carries it out.
type pipelineCommand struct {
	words  []string
	stored bool
	reply  func() string
}

// send sends a pipeline of n commands.
func (m *pipelineModel) send(n int) {
	var commands []pipelineCommand
	m.conn.in, m.store.ends = nil, nil
	for range n {
		c := m.draw()
		commands = append(commands, c)
		m.conn.in = append(m.conn.in, encode(c.words...)...)
	}
	m.conn.start, m.conn.end = 0, len(m.conn.in)
	m.conn.executeBuffered()
	replies := bufio.NewReader(bytes.NewReader(m.conn.out.buf))
	m.conn.out.buf = nil
	for _, c := range commands {
		got, err := readReply(replies)
		if want := m.expect(c); err != nil || !strings.HasPrefix(got, want) {
			m.Fatalf("%q in %q: got %s, %v, want %s", c.words, commands, got, err, want)
		}
	}
}

func (c pipelineCommand) String() string { return strings.Join(c.words, " ") }

// expect returns how the reply to a command begins, and changes the model as the store was.
func (m *pipelineModel) expect(c pipelineCommand) string {
	if !c.stored {
		return c.reply()
	}
	end := m.store.ends[0]
	m.store.ends = m.store.ends[1:]
	if end == notSent {
		m.failed++
		return "-"
	}
	reply := c.reply()
	if end == responseLost {
		m.failed++
		return "-"
	}
	return reply
}

func (m *pipelineModel) draw() pipelineCommand {
	take := []string{"PENSTOCK.TAKE", "KEY", "k", "LIMIT", "4/40ms fixed-window"}
	cost, id := m.rng.Int64N(8)-3, []string{"", "", "a", "b"}[m.rng.IntN(4)]
	switch m.rng.IntN(12) {
	case 0:
		return pipelineCommand{words: []string{"PING"}, reply: func() string { return "+PONG" }}
	case 1:
		return pipelineCommand{words: append(take, "COST", "many"), reply: func() string { return "-ERR" }}
	case 2, 3, 4:
		n := 1 + m.rng.Int64N(2)
		words := []string{"CL.THROTTLE", "k", "2", "1", "10", fmt.Sprint(n)}
		return pipelineCommand{words, true, func() string { return m.throttle(n) }}
	case 5:
		settle := append([]string{"PENSTOCK.SETTLE"}, append(take[1:], "ID", "unknown", "COST", "1")...)
		return pipelineCommand{settle, true, func() string { return "-UNKNOWNID" }}
	case 6:
		return pipelineCommand{append(take, "RESET"), true, func() string { return m.reset() }}
	}
	words := append(take, "COST", fmt.Sprint(cost))
	if id != "" {
		words = append(words, "ID", id)
	}
	return pipelineCommand{words, true, func() string { return m.take(cost, id) }}
}

// now returns the time, after the window and the IDs that have ended by then.
func (m *pipelineModel) now() int64 {
	now := m.clock.now().Sub(m.start).Milliseconds()
	if m.used == 0 || m.end <= now {
		m.used, m.end = 0, now+40
	}
	for id, r := range m.ids {
		if r[2] <= now {
			delete(m.ids, id)
		}
	}
	return now
}

func (m *pipelineModel) throttle(n int64) string {
	now := m.now()
	limited, debt := 1, max(m.full-now, 0)
	if debt+n*10_000 <= 30_000 {
		limited, debt = 0, debt+n*10_000
		m.full = now + debt
	}
	return fmt.Sprintf("*5 :%d :3 :%d ", limited, (30_000-debt)/10_000)
}

func (m *pipelineModel) reset() string {
	m.now()
	granted := -m.used
	m.used = 0
	return m.decision(true, granted)
}

func (m *pipelineModel) take(cost int64, id string) string {
	now := m.now()
	r, known := m.ids[id]
	switch {
	case cost == 0:
		return m.decision(true, 0)
	case cost > 0 && known:
		return m.decision(true, r[0])
	case cost > 0 && m.used+cost > 4:
		return m.decision(false, 0)
	case cost > 0:
		m.used += cost
		if id != "" {
			m.ids[id] = [3]int64{cost, m.end, now + 40}
		}
		return m.decision(true, cost)
	case id == "":
		back := min(-cost, m.used)
		m.used -= back
		return m.decision(true, -back)
	}
	return m.refund(r, id, -cost)
}

// refund refunds what was taken under an ID, once. What is left of it is not refunded again.
func (m *pipelineModel) refund(r [3]int64, id string, units int64) string {
	if r[1] == 0 {
		return m.decision(true, 0)
	}
	units = min(units, r[0])
	back := int64(0)
	if m.used > 0 && r[1] == m.end {
		back = min(units, m.used)
	}
	m.used -= back
	if r[0], r[1] = r[0]-units, 0; r[0] == 0 {
		delete(m.ids, id)
	} else {
		m.ids[id] = r
	}
	return m.decision(true, -back)
}

func (m *pipelineModel) decision(allowed bool, granted int64) string {
	n := map[bool]int{true: 1}[allowed]
	return fmt.Sprintf(`*16 "allowed" :%d "granted" :%d "limit" :4 "remaining" :%d `, n, granted, 4-m.used)
}
