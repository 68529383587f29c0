package durable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/durable"
)

var ctx = context.Background()

// A store is a store with its directory, which is closed with it.
type store struct {
	*durable.Store
	dir *durable.Dir
}

func openStore(path string, o *penstock.MemoryOptions) (*store, error) {
	dir, err := durable.OpenDir(path)
	if err != nil {
		return nil, err
	}
	s, err := dir.OpenStore(o)
	if err != nil {
		_ = dir.Close()
	}
	return &store{s, dir}, err
}

func (s *store) Close() error { return errors.Join(s.Store.Close(), s.dir.Close()) }

func open(t *testing.T, dir string) *store {
	t.Helper()
	s, err := openStore(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func limiter(t *testing.T, s penstock.Store, l penstock.Limit) *penstock.Limiter {
	t.Helper()
	lim, err := penstock.New(s, l)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// quota is a limit that does not refill during a test.
var quota = penstock.Per(1000, 300*24*time.Hour).WithName("quota")

func spend(t *testing.T, s *store, key string, n int64) {
	t.Helper()
	if d, err := limiter(t, s.Memory, quota).AllowN(ctx, key, n); err != nil || !d.Allowed {
		t.Fatalf("%d of %q: %v, %v", n, key, d, err)
	}
}

func remaining(t *testing.T, s *store, key string, want int64) {
	t.Helper()
	if d, err := limiter(t, s.Memory, quota).Peek(ctx, key); err != nil || d.Remaining != want {
		t.Errorf("%q: %v, %v, want %d remaining", key, d, err, want)
	}
}

func closed(t *testing.T, s *store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStoreQuotaSurvivesRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "for", "it")
	s := open(t, dir)
	if s.LoadError() != nil {
		t.Errorf("a new directory: %v", s.LoadError())
	}
	spend(t, s, "user", 700)
	closed(t, s)
	s = open(t, dir)
	remaining(t, s, "user", 300)
	spend(t, s, "user", 100)
	closed(t, s)
	s = open(t, dir)
	remaining(t, s, "user", 200)
	closed(t, s)
}

func TestOpenLocksDirectory(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if other, err := openStore(dir, nil); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v, %v, want an error that says so", other, err)
	}
	closed(t, s)
	closed(t, open(t, dir))
	if err := s.Save(); err == nil {
		t.Error("Save works after Close, over what may be another process's snapshot")
	}
	closed(t, s)
}

// A damaged snapshot is renamed, with an error that has the reason and the new name. It is not
// loaded in part, and a second one does not overwrite it.
func TestOpenRenamesDamagedSnapshot(t *testing.T) {
	dir := t.TempDir()
	for n := 1; n <= 3; n++ {
		s := open(t, dir)
		for i := range 100 {
			spend(t, s, strconv.Itoa(i), 500)
		}
		closed(t, s)
		name := filepath.Join(dir, "memory.snapshot")
		saved, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		damaged := bytes.Clone(saved)
		damaged[len(damaged)*n/4] ^= 0x40
		if err := os.WriteFile(name, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		if err := s.LoadError(); !errors.Is(err, penstock.ErrBadSnapshot) || !strings.Contains(err.Error(), dir) {
			t.Errorf("after damage: %v, want the reason and the new name", err)
		}
		for i := range 100 {
			remaining(t, s, strconv.Itoa(i), 1000)
		}
		closed(t, s)
		if aside, err := filepath.Glob(filepath.Join(dir, "*damaged*")); err != nil || len(aside) != n {
			t.Errorf("after %d damaged snapshots: renamed files %q, %v", n, aside, err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// A snapshot that cannot be read, or does not fit, is not damaged.
func TestOpenReturnsOtherErrors(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for i := range 10 {
		spend(t, s, strconv.Itoa(i), 1)
	}
	closed(t, s)
	if _, err := openStore(dir, &penstock.MemoryOptions{MaxKeys: 5}); err == nil || !strings.Contains(err.Error(), "MaxKeys") {
		t.Errorf("a store that is too small: %v, want an error that says so", err)
	}
	s = open(t, dir) // and nothing was lost
	remaining(t, s, "3", 999)
	closed(t, s)
	if _, err := openStore(filepath.Join(dir, "lock", "below"), nil); err == nil {
		t.Error("a directory below a file: want an error")
	}
}

func TestOpenIgnoresUnfinishedSnapshot(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	spend(t, s, "user", 700)
	closed(t, s)
	if err := os.WriteFile(filepath.Join(dir, "memory.snapshot.new"), []byte("half a snap"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	remaining(t, s, "user", 300)
	closed(t, s)
}

func TestSaveFailureKeepsPreviousSnapshot(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	spend(t, s, "user", 100)
	if err := s.Save(); err != nil {
		t.Fatal(err)
	}
	inTheWay := filepath.Join(dir, "memory.snapshot.new")
	if err := os.MkdirAll(filepath.Join(inTheWay, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	spend(t, s, "user", 100)
	failed := make(chan error, 1)
	runs, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(runs, time.Millisecond, func(err error) {
			select {
			case failed <- err:
			default:
			}
		})
	}()
	if err := <-failed; err == nil {
		t.Error("a snapshot that could not be written: want an error")
	}
	cancel()
	<-done
	if err := s.Close(); err == nil {
		t.Error("closed without saving: want an error")
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	remaining(t, s, "user", 900)
	closed(t, s)
}

func TestRunSavesAtInterval(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, dir)
		runs, cancel := context.WithCancel(ctx)
		go s.Run(runs, 10*time.Second, nil)
		name := filepath.Join(dir, "memory.snapshot")
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if _, err := os.Stat(name); err == nil {
			t.Error("saved before it was time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, err := os.Stat(name); err != nil {
			t.Errorf("not saved after eleven seconds: %v", err)
		}
		cancel()
		synctest.Wait()
		closed(t, s)
	})
}

func TestSnapshotFilesArePrivate(t *testing.T) {
	dir := t.TempDir()
	closed(t, open(t, dir))
	info, err := os.Stat(filepath.Join(dir, "memory.snapshot"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want a file that only its owner can read", info, err)
	}
}

// A process that is killed loses at most the decisions since its last save, and the saved
// snapshot is complete.
func TestStoreSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	taken := int64(0)
	for round := range 15 {
		acknowledged := killedSpender(t, dir, time.Duration(round*3)*time.Millisecond)
		s := open(t, dir)
		if s.LoadError() != nil {
			t.Fatalf("round %d: %v", round, s.LoadError())
		}
		d, err := limiter(t, s.Memory, tally).Peek(ctx, "units")
		if err != nil {
			t.Fatal(err)
		}
		used := d.Limit - d.Remaining
		if used < acknowledged || used < taken {
			t.Fatalf("round %d: %d units are taken after the restart; %d were saved before the kill, and %d before that",
				round, used, acknowledged, taken)
		}
		taken = used
		closed(t, s)
	}
	if taken == 0 {
		t.Error("nothing was ever taken: this has tested nothing")
	}
}

// tally counts what a spender takes.
var tally = penstock.Limit{Algorithm: penstock.FixedWindow, Count: 1 << 40, Period: 300 * 24 * time.Hour, Name: "tally"}

// killedSpender starts a process that takes units and saves, again and again, and
// kills it after a while. It returns how many units the process has said are saved.
func killedSpender(t *testing.T, dir string, after time.Duration) (acknowledged int64) {
	t.Helper()
	process := exec.Command(os.Args[0])
	process.Env, process.Stderr = append(os.Environ(), spenderRole+"="+dir), os.Stderr
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan int64)
	go func() {
		defer close(lines)
		for n := int64(0); ; lines <- n {
			if _, err := fmt.Fscanln(out, &n); err != nil {
				return
			}
		}
	}()
	acknowledged = <-lines // it has begun
	kill := time.After(after)
	for {
		select {
		case n, ok := <-lines:
			if !ok {
				_ = process.Wait() // which says that it was killed
				return acknowledged
			}
			acknowledged = n
		case <-kill:
			_ = process.Process.Kill()
			kill = nil
		}
	}
}

// spender takes units and saves until it is killed.
func spender(dir string) error {
	s, err := openStore(dir, nil)
	if err != nil {
		return err
	}
	lim, err := penstock.New(s.Memory, tally)
	for err == nil {
		var d penstock.Decision
		for range 100 {
			if d, err = lim.Allow(ctx, "units"); err != nil {
				return err
			}
		}
		if err = s.Save(); err == nil {
			fmt.Println(d.Limit - d.Remaining)
		}
	}
	return err
}

// The test binary is also the process that is killed.
const spenderRole = "DURABLE_SPENDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(spenderRole); dir != "" {
		fmt.Fprintln(os.Stderr, spender(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}
