package redisstore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/redisstore"
)

// These tests start this test binary again as worker processes. A worker finds a
// prefix in its environment, runs the jobs it reads from its input and exits at the
// end of the input. It must not start servers as TestMain does.
const (
	workerPrefix      = "PENSTOCK_WORKER_PREFIX"
	workerURL         = "PENSTOCK_WORKER_URL"
	workerClockOffset = "PENSTOCK_WORKER_AHEAD" // how far its clock is ahead
)

func init() {
	if os.Getenv(workerPrefix) == "" {
		return
	}
	if err := runWorker(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A job is a list of requests for a worker, and how many callers repeat it.
type job struct {
	Requests []penstock.Request
	TakeAll  bool
	Callers  int // 0 means 1
	Times    int // for each caller; 0 means 1
}

// A result is what a worker returns for a job.
type result struct {
	Decisions []penstock.Decision // of the last call
	Granted   int64               // in total
	Error     string
}

func runWorker() error {
	ahead, err := time.ParseDuration(os.Getenv(workerClockOffset))
	if err != nil {
		return err
	}
	o := redisstore.Options{Prefix: os.Getenv(workerPrefix), Timeout: longTimeout}.WithConnTimeout(longConnTimeout)
	store, err := redisstore.Open(context.Background(), os.Getenv(workerURL), &o)
	if err != nil {
		return err
	}
	defer store.Close()
	store.SetClock(ahead)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var e job
		if err := in.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := out.Encode(e.run(store)); err != nil {
			return err
		}
	}
}

func (e *job) run(store *redisstore.Store) *result {
	var mu sync.Mutex
	var wg sync.WaitGroup
	r := &result{}
	for range max(e.Callers, 1) {
		wg.Go(func() {
			for range max(e.Times, 1) {
				ds, err := e.take(store)
				mu.Lock()
				r.Decisions = ds
				for _, d := range ds {
					r.Granted += d.Granted
				}
				if err != nil {
					r.Error = err.Error()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return r
}

func (e *job) take(store *redisstore.Store) ([]penstock.Decision, error) {
	ds := make([]penstock.Decision, len(e.Requests))
	if e.TakeAll {
		return ds, penstock.TakeAll(context.Background(), store, e.Requests, ds)
	}
	return ds, penstock.TakeEach(context.Background(), store, e.Requests, ds)
}

// A worker is another process with a store.
type worker struct {
	process *exec.Cmd
	in      *json.Encoder
	out     *json.Decoder
	killed  bool
}

// startWorkers starts one worker for each clock offset, with one prefix, on the server
// with the fake clock.
func startWorkers(t *testing.T, clocks ...time.Duration) (workers []*worker) {
	t.Helper()
	prefix := newPrefix()
	for _, ahead := range clocks {
		workers = append(workers, startWorker(t, "unix://"+fakeClockServer.Socket, prefix, ahead))
	}
	for _, w := range workers {
		w.run(t, job{}) // its store is open then: keys of the probe do not outlive a step of the clock
	}
	return workers
}

// startWorker starts a worker with a store on a server.
func startWorker(t *testing.T, url, prefix string, ahead time.Duration) *worker {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), workerPrefix+"="+prefix, workerURL+"="+url, workerClockOffset+"="+ahead.String())
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w := &worker{process: c, in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out))}
	t.Cleanup(func() {
		_ = in.Close()
		if err := c.Wait(); err != nil && !w.killed {
			t.Errorf("worker: %v", err)
		}
	})
	return w
}

// kill kills a worker.
func (w *worker) kill(t *testing.T) {
	t.Helper()
	w.killed = true
	if err := w.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = w.out.Decode(&result{}) // returns when the process has ended
}

func (w *worker) run(t *testing.T, e job) (r result) {
	t.Helper()
	if err := w.in.Encode(e); err != nil {
		t.Error(err)
	}
	if err := w.out.Decode(&r); err != nil || r.Error != "" {
		t.Errorf("%+v: %v, %s", e, err, r.Error)
	}
	return r
}

// loggedSeed returns the seed of a random test, and logs it if the test fails.
func loggedSeed(t *testing.T) uint64 {
	t.Helper()
	seed := fixedseed.Seed()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return seed
}

// Processes with clocks hours apart decide by the clock of Redis, as memory does at
// that time.
func TestProcessesClockSkewAgreesWithMemory(t *testing.T) {
	workers := startWorkers(t, 0, 7*time.Hour, -5*time.Hour, 90*24*time.Hour)
	limits := []penstock.Limit{
		{Algorithm: penstock.FixedWindow, Count: 8, Align: penstock.AlignDay, Zone: "Europe/Berlin"},
		{Algorithm: penstock.FixedWindow, Count: 8, Align: penstock.AlignMonth, Zone: "UTC"},
		{Algorithm: penstock.FixedWindow, Count: 8, Align: penstock.AlignClock, Period: time.Hour},
	}
	for a := range penstock.SlidingLog + 1 {
		limits = append(limits, penstock.PerHour(8).WithAlgorithm(a))
	}
	now := time.Date(2031, 3, 29, 12, 0, 0, 0, time.UTC)
	memory := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }, Tick: time.Millisecond})
	granted := int64(0)
	random := rand.New(rand.NewPCG(loggedSeed(t), 0))
	steps := fixedseed.FewerUnderRace(600)
	for i := range steps {
		fakeClockServer.Clock.Set(now)
		r := penstock.Request{Key: "k", Limit: limits[random.IntN(len(limits))], Cost: random.Int64N(4)}
		want, err := memory.Take(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		got := workers[i%len(workers)].run(t, job{Requests: []penstock.Request{r}})
		if t.Failed() || got.Decisions[0] != want {
			t.Fatalf("%s, at %s, by worker %d: got %+v, want %+v", r.Limit, now, i%len(workers), got.Decisions, want)
		}
		granted += want.Granted
		now = now.Add(time.Duration(random.Int64N(10*60_000)) * time.Millisecond)
	}
	t.Logf("%d decisions of 4 processes over %v, admitted %d, as memory alone", steps, now.Sub(time.Date(2031, 3, 29, 12, 0, 0, 0, time.UTC)), granted)
}

func TestProcessesThousandCallsAtOneInstant(t *testing.T) {
	const count = 137
	workers := startWorkers(t, 0, time.Hour, -time.Hour, 0)
	fakeClockServer.Clock.Set(time.Now())
	for _, l := range slowLimits {
		l.Count = count
		if l.Burst > 0 {
			l.Burst = count
		}
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for _, w := range workers {
			wg.Go(func() {
				r := penstock.Request{Key: "one", Limit: l, Cost: 1}
				admitted.Add(w.run(t, job{Requests: []penstock.Request{r}, Callers: 10, Times: 25}).Granted)
			})
		}
		wg.Wait()
		t.Logf("%s: 1000 calls of 4 processes: admitted %d, bound %d", l, admitted.Load(), count)
		if admitted.Load() != count {
			t.Errorf("%s: 1000 calls at one instant: %d admitted, want %d", l, admitted.Load(), count)
		}
	}
}

// The decisions of concurrent processes have an order that explains each of them and
// lies between call and return. At one instant all algorithms are equal, because
// nothing refills.
func TestProcessesAreLinearizable(t *testing.T) {
	const histories, perWorker = 42, 6
	workers := startWorkers(t, 0, 3*time.Hour, -3*time.Hour)
	fakeClockServer.Clock.Set(time.Now())
	seed := loggedSeed(t)
	for n := range histories {
		limit := slowLimits[n%len(slowLimits)]
		limit.Count, limit.Burst = linearCount, 0
		if limit.Algorithm == penstock.LeakyBucket {
			limit.Burst = linearCount
		}
		var time atomic.Int64
		var mu sync.Mutex
		var history []porcupine.Operation
		var wg sync.WaitGroup
		for client, w := range workers {
			random := rand.New(rand.NewPCG(seed, uint64(n*len(workers)+client)))
			wg.Go(func() {
				for range perWorker {
					e := randomJob(random, limit, n)
					called := time.Add(1)
					r := w.run(t, e)
					returned := time.Add(1)
					mu.Lock()
					history = append(history, porcupine.Operation{
						ClientId: client, Input: e, Call: called, Output: r.Decisions, Return: returned,
					})
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if !t.Failed() && !porcupine.CheckOperations(linearModel, history) {
			t.Fatalf("%s: no order explains these decisions:\n%+v", limit, history)
		}
	}
}

const linearCount = 9

// randomJob returns a request for one key or a TakeAll for both.
func randomJob(random *rand.Rand, l penstock.Limit, history int) job {
	r := penstock.Request{Key: fmt.Sprintf("%d-%d", history, random.IntN(2)), Limit: l, Cost: 1 + random.Int64N(4)}
	switch random.IntN(7) {
	case 0:
		r.Cost = -r.Cost
	case 1:
		r.AtMost = true
	case 2, 3:
		r.ID = "x"
	case 4:
		r.ID, r.Cost = "x", -linearCount
	case 5:
		other := r
		other.Key = fmt.Sprintf("%d-%d", history, 1-int(r.Key[len(r.Key)-1]-'0'))
		return job{Requests: []penstock.Request{r, other}, TakeAll: true}
	}
	return job{Requests: []penstock.Request{r}}
}

// A keyStates is the state of two keys at one instant: the units used, and those granted
// under the ID of each key.
type keyStates struct{ used, granted [2]int64 }

var linearModel = porcupine.Model{
	Init: func() any { return keyStates{} },
	Step: func(state, input, output any) (bool, any) {
		s, e := state.(keyStates), input.(job)
		if e.TakeAll {
			return s.takeBoth(e, output.([]penstock.Decision))
		}
		allowed, granted := s.take(e.Requests[0])
		return s.explains(e, output.([]penstock.Decision), allowed, granted), s
	},
}

// explains reports whether the decisions follow from this state.
func (s *keyStates) explains(e job, ds []penstock.Decision, allowed bool, granted int64) bool {
	for i, d := range ds {
		if d.Allowed != allowed || d.Granted != granted || d.Remaining != linearCount-s.used[keyIndex(e.Requests[i])] {
			return false
		}
	}
	return true
}

func keyIndex(r penstock.Request) int { return int(r.Key[len(r.Key)-1] - '0') }

func (s *keyStates) take(r penstock.Request) (allowed bool, granted int64) {
	k := keyIndex(r)
	switch {
	case r.Cost < 0 && r.ID != "":
		granted = -s.granted[k]
		s.granted[k] = 0
		granted = max(granted, -s.used[k])
	case r.Cost < 0:
		granted = max(r.Cost, -s.used[k])
	case r.ID != "" && s.granted[k] > 0:
		return true, s.granted[k]
	case r.AtMost:
		granted = min(r.Cost, linearCount-s.used[k])
	case r.Cost <= linearCount-s.used[k]:
		granted = r.Cost
	}
	s.used[k] += granted
	if r.ID != "" && granted > 0 {
		s.granted[k] = granted
	}
	return r.Cost < 0 || granted > 0, granted
}

// takeBoth takes from both keys or none. A denied TakeAll is a peek for the keys that
// would have allowed it.
func (s keyStates) takeBoth(e job, ds []penstock.Decision) (bool, any) {
	after, fits := s, true
	for _, r := range e.Requests {
		ok, _ := after.take(r)
		fits = fits && ok
	}
	if fits {
		return after.explains(e, ds, true, e.Requests[0].Cost), after
	}
	for i, r := range e.Requests {
		left := linearCount - s.used[keyIndex(r)]
		if d := ds[i]; d.Allowed != (r.Cost <= left) || d.Granted != 0 || d.Remaining != left {
			return false, s
		}
	}
	return true, s
}
