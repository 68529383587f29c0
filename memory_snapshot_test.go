package penstock_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
)

func TestMemoryDurablePassesStoretest(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		return penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, Durable: true, MaxKeys: 1 << 12})
	})
}

func TestMemoryRestoredPassesStoretest(t *testing.T) {
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		o := &penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, Durable: true, MaxKeys: 1 << 12}
		return &restartingStore{t: t, options: o, store: penstock.NewMemory(o)}
	})
}

// A restartingStore saves and restores its store after every 16 requests.
type restartingStore struct {
	t       testing.TB
	mu      sync.Mutex
	options *penstock.MemoryOptions
	store   *penstock.Memory
	taken   int
}

func (s *restartingStore) restart() {
	if s.taken++; s.taken%16 != 0 {
		return
	}
	s.store = restoreMemory(s.t, snapshot(s.t, s.store), s.options)
}

func (s *restartingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restart()
	return s.store.Take(ctx, r)
}

func (s *restartingStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restart()
	return s.store.TakeAll(ctx, rs, ds)
}

func snapshot(t testing.TB, m *penstock.Memory) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := m.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func restoreMemory(t testing.TB, snapshot []byte, o *penstock.MemoryOptions) *penstock.Memory {
	t.Helper()
	m, err := penstock.RestoreMemory(bytes.NewReader(snapshot), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Time passes between a snapshot and its restoration, on the clock of each limit.
func TestRestoreMemoryCountsTimeSinceSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			limit string
			left  int64 // of 100, after taking 20, restoring 6 seconds later, and taking 30 more
		}{
			{"100/1m", 60}, // ten come back
			{"100/1m leaky-bucket", 60},
			{"100/1h fixed-window", 50},
			{"100/5s fixed-window", 70}, // a new window
			{"100/day fixed-window zone=Asia/Shanghai", 50},
			{"100/1m sliding-window", 50},
			{"100/1m rolling-window", 50},
			{"100/1m sliding-log", 50},
			{"100/6s sliding-log", 70}, // what was taken is over
		} {
			store := penstock.NewMemory(&penstock.MemoryOptions{Durable: true})
			lim := limiter(t, store, c.limit)
			time.Sleep(time.Minute) // so that the monotonic clocks of the two processes differ
			if _, err := lim.AllowN(ctx, "key", 20); err != nil {
				t.Fatal(err)
			}
			saved := snapshot(t, store)
			time.Sleep(6 * time.Second)
			lim = limiter(t, restoreMemory(t, saved, nil), c.limit)
			d, err := lim.AllowN(ctx, "key", 30)
			if err != nil || d.Remaining != c.left {
				t.Errorf("%s: %v, %v, want %d remaining", c.limit, d, err, c.left)
			}
			// After that, time passes as usual.
			time.Sleep(d.ResetAfter)
			if d, err = lim.Peek(ctx, "key"); err != nil || d.Remaining != 100 {
				t.Errorf("%s: after ResetAfter: %v, %v, want all of it", c.limit, d, err)
			}
		}
	})
}

func TestSnapshotOfRestoredMemoryKeepsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := penstock.NewMemory(&penstock.MemoryOptions{Durable: true})
		for range 5 {
			if d, err := limiter(t, store, "100/1m").AllowN(ctx, "key", 20); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			time.Sleep(3 * time.Second) // five units refill
			store = restoreMemory(t, snapshot(t, store), nil)
		}
		expectRemaining(t, limiter(t, store, "100/1m"), "key", 25)
	})
}

// If the machine's clock was set back since the snapshot, no time has passed: units
// are neither available too early nor locked up.
func TestRestoreMemoryAfterClockSetBackPassesNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := penstock.NewMemory(&penstock.MemoryOptions{Durable: true})
		lim := limiter(t, store, "100/1m")
		time.Sleep(time.Hour)
		if _, err := lim.AllowN(ctx, "key", 100); err != nil {
			t.Fatal(err)
		}
		saved := snapshot(t, store)
		wall := saved[8+4+4+8+8:]
		binary.LittleEndian.PutUint64(wall, binary.LittleEndian.Uint64(wall)+uint64(24*time.Hour))
		lim = limiter(t, restoreMemory(t, withChecksum(saved), nil), "100/1m")
		expectRemaining(t, lim, "key", 0)
		time.Sleep(30 * time.Second)
		expectRemaining(t, lim, "key", 50)
	})
}

// headerLen is the length of a snapshot's header, with its magic and its checksum.
const headerLen = 8 + 4 + 4 + 8 + 8 + 8 + 16 + 4

// withChecksum returns a snapshot with correct checksums.
func withChecksum(snapshot []byte) []byte {
	body := bytes.Clone(snapshot[:len(snapshot)-sha256.Size])
	binary.LittleEndian.PutUint32(body[headerLen-4:], crc32.ChecksumIEEE(body[8:headerLen-4]))
	sum := sha256.Sum256(body)
	return append(body, sum[:]...)
}

// IDs, overflow buckets and reservations are restored.
func TestSnapshotHoldsAllState(t *testing.T) {
	clock := newFakeClock()
	o := &penstock.MemoryOptions{Now: clock.now, Durable: true, MaxKeys: 4}
	store := penstock.NewMemory(o)
	lim := limiter(t, store, "5/1h")
	once := lim.Request("a")
	once.Cost, once.ID = 3, "id"
	later := lim.Request("b")
	later.Cost, later.MaxDelay = 5, time.Hour
	for _, r := range []penstock.Request{once, later, later} {
		if d, err := store.Take(ctx, r); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	takeFive(t, lim, "c")                                // the last slot
	if _, err := lim.AllowN(ctx, "new", 2); err != nil { // of the overflow bucket
		t.Fatal(err)
	}
	before := store.Stats()
	store = restoreMemory(t, snapshot(t, store), o)
	if after := store.Stats(); after.Keys != before.Keys || after.Bytes != before.Bytes {
		t.Errorf("restored: %+v, want %+v", after, before)
	}
	lim = limiter(t, store, "5/1h")
	if d, err := store.Take(ctx, once); err != nil || d.Granted != 3 || d.Remaining != 2 {
		t.Errorf("retry with the ID: %v, %v, want the same grant, and nothing charged", d, err)
	}
	if d, err := lim.Peek(ctx, "b"); err != nil || d.ResetAfter != 2*time.Hour {
		t.Errorf("reserved: %v, %v, want two hours", d, err)
	}
	expectRemaining(t, lim, "c", 0)
	expectRemaining(t, lim, "another new key", 3)
}

// The slot of a restored key expires, wherever in the snapshot it was.
func TestRestoreMemorySlotsExpire(t *testing.T) {
	for range 30 { // with another order each time
		clock := newFakeClock()
		o := &penstock.MemoryOptions{Now: clock.now, Durable: true, MaxKeys: 100}
		store := penstock.NewMemory(o)
		long, short := limiter(t, store, "5/1h"), limiter(t, store, "5/1m")
		takeFive(t, short, "soon gone")
		for i := range 99 {
			takeFive(t, long, strconv.Itoa(i))
		}
		store = restoreMemory(t, snapshot(t, store), o)
		clock.advance(2 * time.Minute)
		takeFive(t, limiter(t, store, "5/1h"), "new")
		if got := store.Stats(); got.OverflowDecisions != 0 {
			t.Fatalf("%+v: a new key used the overflow bucket, though a slot had expired", got)
		}
	}
}

// The lifetime of an ID includes the time of the restart, also under a limit that
// goes by the wall clock.
func TestRestoreMemoryExpiresIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := penstock.NewMemory(&penstock.MemoryOptions{Durable: true})
		time.Sleep(30 * time.Hour)
		for _, text := range []string{"100/7d fixed-window", "100/month fixed-window zone=Asia/Shanghai"} {
			r := limiter(t, store, text).Request("key")
			r.Cost, r.ID = 10, "id"
			for _, c := range []struct {
				after time.Duration
				left  int64
			}{{0, 90}, {20 * time.Hour, 90}, {5 * time.Hour, 80}} {
				time.Sleep(c.after)
				store = restoreMemory(t, snapshot(t, store), nil)
				d, err := store.Take(ctx, r)
				if err != nil || d.Granted != 10 || d.Remaining != c.left {
					t.Errorf("%s after %v more: %v, %v, want %d left", text, c.after, d, err, c.left)
				}
			}
		}
	})
}

func TestRestoreMemoryRefusesDamagedSnapshot(t *testing.T) {
	small := &penstock.MemoryOptions{Durable: true, MaxKeys: 1000}
	store := penstock.NewMemory(small)
	for _, text := range everyAlgorithm {
		takeFive(t, limiter(t, store, text), "key")
	}
	saved := snapshot(t, store)
	refused := func(damaged []byte, want error) {
		t.Helper()
		if m, err := penstock.RestoreMemory(bytes.NewReader(damaged), small); !errors.Is(err, want) || m != nil {
			t.Errorf("%v, want %v", err, want)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		damaged := bytes.Clone(saved)
		damaged[rng.IntN(len(damaged))] ^= 1 << rng.IntN(8)
		refused(damaged, penstock.ErrBadSnapshot)
	}
	past := bytes.Clone(saved)
	past[8] = 1
	refused(withChecksum(past), penstock.ErrSnapshotVersion)
	restoreMemory(t, saved, small) // is intact
}

// A snapshot that is too large for the options is not reported as damaged.
func TestRestoreMemoryRefusesSnapshotThatDoesNotFit(t *testing.T) {
	clock := newFakeClock()
	o := penstock.MemoryOptions{Now: clock.now, Durable: true}
	store := penstock.NewMemory(&o)
	bucket, log := limiter(t, store, "5/1h"), limiter(t, store, "5/1h sliding-log")
	for i := range 100 {
		takeFive(t, bucket, strconv.Itoa(i))
		takeFive(t, log, strconv.Itoa(i))
	}
	saved := snapshot(t, store)
	for name, change := range map[string]func(*penstock.MemoryOptions){
		"MaxKeys":  func(o *penstock.MemoryOptions) { o.MaxKeys = 150 },
		"MaxBytes": func(o *penstock.MemoryOptions) { o.MaxBytes = 1000 },
		"Tick":     func(o *penstock.MemoryOptions) { o.Tick = time.Millisecond },
		"Now":      func(o *penstock.MemoryOptions) { o.Now = nil },
	} {
		other := o
		change(&other)
		_, err := penstock.RestoreMemory(bytes.NewReader(saved), &other)
		if err == nil || errors.Is(err, penstock.ErrBadSnapshot) || !strings.Contains(err.Error(), name) {
			t.Errorf("another %s: %v, want an error that names it", name, err)
		}
	}
	clock.advance(2 * time.Hour) // everything has expired, and needs no room
	o.MaxKeys = 1
	if m := restoreMemory(t, saved, &o); m.Stats().Keys != 0 {
		t.Errorf("restored expired entries: %+v", m.Stats())
	}
}

func TestSnapshotRequiresDurable(t *testing.T) {
	if err := penstock.NewMemory(nil).Snapshot(new(bytes.Buffer)); err == nil {
		t.Error("a snapshot of a store that is not Durable: want an error")
	}
}

func TestSnapshotReportsWriteError(t *testing.T) {
	closed, w := io.Pipe()
	_ = closed.Close()
	if err := penstock.NewMemory(&penstock.MemoryOptions{Durable: true}).Snapshot(w); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a closed file: %v, want io.ErrClosedPipe", err)
	}
}

// A snapshot can be taken while the store is in use: for each key it holds a state
// that the key had.
func TestSnapshotWhileInUseHoldsStatesOfKeys(t *testing.T) {
	clock := newFakeClock()
	o := &penstock.MemoryOptions{Now: clock.now, Durable: true}
	store := penstock.NewMemory(o)
	lim := limiter(t, store, "1000/1h sliding-log")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					_, _ = lim.Allow(ctx, strconv.Itoa((i*7+worker)%100))
				}
			}
		})
	}
	last, rounds := make([]int64, 100), 20
	if testing.Short() {
		rounds = 5
	}
	for range rounds {
		m := limiter(t, restoreMemory(t, snapshot(t, store), o), "1000/1h sliding-log")
		for i := range last {
			d, err := m.Peek(ctx, strconv.Itoa(i))
			if err != nil {
				t.Fatal(err)
			}
			if used := d.Limit - d.Remaining; used < last[i] {
				t.Errorf("key %d has used %d, and had used %d before", i, used, last[i])
			} else {
				last[i] = used
			}
		}
	}
	close(stop)
	wg.Wait()
}

// Any bytes between a correct header and a correct checksum are either restored or
// refused, and never take more memory than their length warrants.
func FuzzRestoreMemory(f *testing.F) {
	small := &penstock.MemoryOptions{Durable: true, MaxKeys: 1000}
	store := penstock.NewMemory(small)
	for _, text := range everyAlgorithm {
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			f.Fatal(err)
		}
		if _, err = store.Take(ctx, penstock.Request{Key: "key", Limit: limit, Cost: 2, ID: "id"}); err != nil {
			f.Fatal(err)
		}
	}
	saved := snapshot(f, store)
	f.Add(saved[headerLen : len(saved)-sha256.Size])
	f.Add([]byte{0xff})
	f.Add([]byte{3, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, body []byte) {
		whole := append(bytes.Clone(saved[:headerLen]), body...)
		m, err := penstock.RestoreMemory(bytes.NewReader(withChecksum(append(whole, make([]byte, sha256.Size)...))), small)
		if err != nil {
			return
		}
		if held := int(m.Stats().Keys); held*17 > len(body) {
			t.Errorf("%d keys of %d bytes", held, len(body))
		}
		snapshot(t, m)
	})
}
