package simulation

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// A restored store decides every later call as the store that wrote the snapshot, also if it is
// full, if time passes before it is restored, and on each clock.
func TestRestoreMemoryDecidesAsItsSource(t *testing.T) {
	rng := rand.New(rand.NewPCG(fixedseed.Seed(), 5))
	overflow, cases := int64(0), fixedseed.FewerUnderRace(250)
	for i := range cases {
		synctest.Test(t, func(t *testing.T) {
			m := newSnapshotModel(rng)
			m.call(t, 5+rng.IntN(30))
			m.restore(t)
			m.call(t, 35)
			overflow += m.source.Stats().OverflowDecisions
			if t.Failed() {
				t.Logf("case %d", i)
			}
		})
	}
	if overflow < int64(cases)/5 {
		t.Errorf("%d decisions by overflow buckets, want many", overflow)
	}
}

// A snapshotModel is a store, and one that was restored from its snapshot.
type snapshotModel struct {
	rng              *rand.Rand
	options          *penstock.MemoryOptions
	limits           []penstock.Limit
	source, restored *penstock.Memory
	log              strings.Builder
}

func newSnapshotModel(rng *rand.Rand) *snapshotModel {
	m := &snapshotModel{rng: rng, options: &penstock.MemoryOptions{Durable: true, MaxKeys: 1000}}
	switch rng.IntN(3) {
	case 0:
		m.options.Tick = time.Millisecond
	case 1:
		m.options.Now = func() time.Time { return time.Now().Add(time.Hour) }
	}
	if rng.IntN(2) == 0 {
		m.options.MaxKeys = 3 + rng.IntN(6)
	}
	for range 3 {
		limits := denyCacheLimits(rng)[2:4] // which share their state
		for i := range limits {
			limits[i].Count += rng.Int64N(10)
			limits[i].Untrusted = len(m.limits) == 0
			if limits[i].Algorithm == penstock.FixedWindow && len(m.limits) == 2 {
				limits[i].Align = penstock.AlignClock
			}
		}
		m.limits = append(m.limits, limits...)
	}
	m.source = penstock.NewMemory(m.options)
	return m
}

// restore restores a snapshot of the source, a while after it was written.
func (m *snapshotModel) restore(t *testing.T) {
	var saved bytes.Buffer
	if err := m.source.Snapshot(&saved); err != nil {
		t.Fatal(err)
	}
	m.sleep()
	var err error
	if m.restored, err = penstock.RestoreMemory(&saved, m.options); err != nil {
		t.Fatal(err)
	}
}

func (m *snapshotModel) sleep() {
	time.Sleep(time.Duration(m.rng.IntN(4)*m.rng.IntN(3))*10*time.Millisecond + time.Duration(m.rng.IntN(1000)))
}

// call makes some calls of both stores, and compares every field of their decisions.
func (m *snapshotModel) call(t *testing.T, times int) {
	t.Helper()
	for range times {
		m.sleep()
		c := newDenyCacheCall(m.rng, m.limits)
		for i := range c.rs {
			c.rs[i].Key = string(rune('a' + m.rng.IntN(5)))
		}
		want, wantErr := c.decide(m.source)
		fmt.Fprintf(&m.log, "%v %v\n  want %v, %v\n", time.Now().Format("05.000000000"), c, want, wantErr)
		if m.restored == nil {
			continue
		}
		got, gotErr := c.decide(m.restored)
		if fmt.Sprintf("%+v %v", got, gotErr) != fmt.Sprintf("%+v %v", want, wantErr) {
			t.Fatalf("%+v: a restored store decides otherwise: %v, %v\n%s", *m.options, got, gotErr, m.log.String())
		}
	}
}
