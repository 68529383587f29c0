package faults

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// holderURL is set in the environment of a holder: the test binary again, as a process that
// can be killed. It takes a permit, says so, and holds it until it is killed.
const (
	holderURL  = "PENSTOCK_FAULTS_HOLDER"
	holderText = "PENSTOCK_FAULTS_HOLDER_LIMIT" // the limit of that permit
)

// holderLimit is the limit of most tests.
var holderLimit = penstock.Limit{Algorithm: penstock.Concurrent, Count: holders, Period: time.Minute}

const holders = 3

// runHolder returns at once in a test, and in a holder only if it fails.
func runHolder() error {
	url := os.Getenv(holderURL)
	if url == "" {
		return nil
	}
	store, err := redisstore.Open(context.Background(), url, &redisstore.Options{Timeout: longTimeout})
	if err != nil {
		return err
	}
	limit, err := penstock.ParseLimit(os.Getenv(holderText))
	if err != nil {
		return err
	}
	lim, err := penstock.New(store, limit)
	if err != nil {
		return err
	}
	p, d, err := lim.Acquire(context.Background(), "key")
	if err != nil || p == nil {
		return fmt.Errorf("acquire: %v, %w", d, err)
	}
	fmt.Println("holds")
	<-p.Context().Done()
	return context.Cause(p.Context())
}

// startHolder starts a holder, and returns when it holds its permit.
func startHolder(t *testing.T, url string, limit penstock.Limit) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(path)
	var problems bytes.Buffer
	process.Env, process.Stderr = append(os.Environ(), holderURL+"="+url, holderText+"="+limit.String()), &problems
	redistest.DieWithParent(process)
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	if lines := bufio.NewScanner(out); !lines.Scan() || lines.Text() != "holds" {
		err := process.Wait()
		t.Fatalf("a holder says %q, %v, and ends with %v: %s", lines.Text(), lines.Err(), err, &problems)
	}
	return process
}

// permitsOn returns a limiter of permits, on a server.
func permitsOn(t *testing.T, server *redistest.Server, limit penstock.Limit) *penstock.Limiter {
	t.Helper()
	store, err := redisstore.Open(context.Background(), "redis://"+server.Addr, &redisstore.Options{Timeout: longTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	lim, err := penstock.New(store, limit)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// Processes that are killed do not release their permits. While they live they renew
// them, which takes a period to show and is watched with -faults.full; after they died
// the permits expire, by the clock of Redis, which the test sets.
func TestPermitsOfKilledProcessesExpire(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{FakeClock: true})
	lim := permitsOn(t, server, holderLimit)
	var processes []*exec.Cmd
	for range holders {
		processes = append(processes, startHolder(t, "redis://"+server.Addr, holderLimit))
		server.Clock.Set(time.Now()) // no step of it may be as long as a permit
	}
	watch := 300 * time.Millisecond
	if *full {
		watch = 2 * holderLimit.Period
	}
	for start := time.Now(); time.Since(start) < watch; time.Sleep(100 * time.Millisecond) {
		server.Clock.Set(time.Now())
		if p, d, err := lim.Acquire(t.Context(), "key"); err != nil || p != nil {
			t.Fatalf("%d processes hold %d permits, and there was another: %v, %v", len(processes), holders, d, err)
		}
	}
	for _, process := range processes {
		if err := process.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := process.Wait(); err == nil || process.ProcessState.Exited() {
			t.Fatalf("a holder ended by itself: %v", process.ProcessState)
		}
	}
	now := time.Now()
	redistest.WaitFor(t, "the permits of the killed processes expire", func() bool {
		now = now.Add(holderLimit.Period)
		server.Clock.Set(now) // in steps: a renewal may have been on its way
		d, err := lim.Peek(t.Context(), "key")
		return err == nil && d.Remaining == holders
	})
	for i := range holders {
		p, d, err := lim.Acquire(t.Context(), "key")
		if err != nil || p == nil {
			t.Fatalf("permit %d of %d, after the processes were killed: %v, %v", i+1, holders, d, err)
		}
		defer p.Release()
	}
	if p, d, err := lim.Acquire(t.Context(), "key"); err != nil || p != nil {
		t.Errorf("one permit too many: %v, %v", d, err)
	}
}

// A process that is suspended renews nothing, so its permit goes to another. When it wakes up, its
// context ends: it cannot take the permit back.
func TestPermitOfSuspendedProcessGoesToAnother(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{FakeClock: true})
	limit := penstock.Limit{Algorithm: penstock.Concurrent, Count: 1, Period: 6 * time.Second}
	now := time.Now()
	server.Clock.Set(now)
	process := startHolder(t, "redis://"+server.Addr, limit)
	for !suspend(t, process) { // it was so slow that its permit was lost before
		now = now.Add(limit.Period)
		server.Clock.Set(now)
		process = startHolder(t, "redis://"+server.Addr, limit)
	}
	lim := permitsOn(t, server, limit)
	var p *penstock.Permit
	redistest.WaitFor(t, "the permit of the suspended process expires", func() bool {
		now = now.Add(limit.Period)
		server.Clock.Set(now) // in steps: a renewal may have been on its way
		var err error
		if p, _, err = lim.Acquire(t.Context(), "key"); err != nil {
			t.Fatal(err)
		}
		return p != nil
	})
	if err := process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(); err == nil || !process.ProcessState.Exited() {
		t.Fatalf("the process that was suspended: %v, want it to end because its permit is lost", process.ProcessState)
	}
	if d, err := lim.Peek(t.Context(), "key"); err != nil || d.Remaining != 0 {
		t.Errorf("another holds the permit: %v, %v, want none left", d, err)
	}
	p.Release()
	if d, err := lim.Peek(t.Context(), "key"); err != nil || d.Remaining != 1 {
		t.Errorf("after the release: %v, %v, want one left", d, err)
	}
}

// suspend stops a process, and returns when it is stopped. It returns false if the process had
// ended.
func suspend(t *testing.T, process *exec.Cmd) bool {
	t.Helper()
	if err := process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var state syscall.WaitStatus
	if _, err := syscall.Wait4(process.Process.Pid, &state, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	return state.Stopped()
}

// A Redis that comes back empty grants Count more. The permits of earlier holders are
// decided anew at their next renewal, so after one period no more than Count are held.
func TestPermitsAfterRedisLostThem(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{})
	limit := holderLimit
	limit.Period = 15 * time.Second // a third of it passes before permits are renewed
	lim := permitsOn(t, server, limit)
	acquire := func() (held []*penstock.Permit) {
		for range 2 * holders {
			p, _, err := lim.Acquire(t.Context(), "key")
			if err != nil {
				t.Fatal(err)
			}
			if p != nil {
				held = append(held, p)
			}
		}
		return held
	}
	first := acquire()
	before := redistest.InfoField(t, server, "run_id")
	server.Kill()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "Redis answers", func() bool { _, err := lim.Peek(t.Context(), "key"); return err == nil })
	if redistest.InfoField(t, server, "run_id") == before {
		t.Fatal("Redis was not restarted")
	}
	all := append(first, acquire()...)
	if len(first) != holders || len(all) > 2*holders {
		t.Fatalf("%d permits before the loss and %d after it, of %d", len(first), len(all)-len(first), holders)
	}
	working := func() (n int) {
		for _, p := range all {
			if p.Context().Err() == nil {
				n++
			}
		}
		return n
	}
	redistest.WaitFor(t, "no more than Count hold permits", func() bool { return working() <= holders })
	for _, p := range all {
		p.Release()
	}
	if d, err := lim.Peek(t.Context(), "key"); err != nil || d.Remaining != holders {
		t.Errorf("after all were released: %v, %v", d, err)
	}
}
