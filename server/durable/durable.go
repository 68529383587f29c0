// Package durable keeps what an embedded store holds in a file, so that a quota
// does not begin anew because a process does.
//
// The file is written beside its final place, synced and renamed: whenever the
// process or the machine stops, there is a whole snapshot, the last one that was
// saved. What was decided after that is forgotten. A file that is damaged is set
// aside and never loaded, not even in part.
package durable

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// The names of files in a store's folder.
const (
	snapshotName = "memory.snapshot"
	newName      = "memory.snapshot.new"
	damagedName  = "memory.snapshot.damaged-"
	lockName     = "lock"
)

// A Store is a [penstock.Memory] whose state is in a folder. It must be closed.
type Store struct {
	*penstock.Memory
	dir      string
	lock     *os.File
	setAside error

	mu     sync.Mutex
	closed bool
}

// Open returns the store of a folder, which is made if there is none. Nobody
// else can open it until the store is closed, or the process ends. The options
// are those of the store; nil is all defaults, and Durable goes without saying.
//
// A snapshot that is damaged is set aside, and the store begins empty:
// [Store.LoadError] says so. Any other error is returned.
func Open(dir string, o *penstock.MemoryOptions) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("durable: %s: %w", dir, err)
	}
	s := &Store{dir: dir, lock: lock}
	if err = s.load(o); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("durable: %w", err)
	}
	return s, nil
}

// load restores the store, or begins with an empty one.
func (s *Store) load(o *penstock.MemoryOptions) error {
	var own penstock.MemoryOptions
	if o != nil {
		own = *o
	}
	own.Durable = true
	err := s.restore(&own)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, penstock.ErrBadSnapshot):
		if err = s.putAside(err); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	s.Memory = penstock.NewMemory(&own)
	return nil
}

func (s *Store) restore(o *penstock.MemoryOptions) error {
	f, err := os.Open(s.path(snapshotName))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	s.Memory, err = penstock.RestoreMemory(bufio.NewReaderSize(f, 1<<16), o)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return nil
}

// putAside moves a damaged snapshot out of the way, for somebody to look at. It
// never moves it over another one.
func (s *Store) putAside(damage error) error {
	name := s.path(damagedName + time.Now().UTC().Format("20060102T150405.000000000"))
	if err := os.Rename(s.path(snapshotName), name); err != nil {
		return fmt.Errorf("setting aside what is damaged: %w", err)
	}
	s.setAside = fmt.Errorf("%w: set aside as %s; beginning with an empty store", damage, name)
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// LoadError returns why the store began empty though there was a snapshot, and
// where that is now; or nil.
func (s *Store) LoadError() error { return s.setAside }

var errClosed = errors.New("durable: the store is closed")

// Save writes a snapshot. If it fails, the one before it stays.
func (s *Store) Save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	return s.save()
}

func (s *Store) save() error {
	if err := s.write(s.path(newName)); err != nil {
		_ = os.Remove(s.path(newName))
		return fmt.Errorf("durable: saving: %w", err)
	}
	if err := os.Rename(s.path(newName), s.path(snapshotName)); err != nil {
		return fmt.Errorf("durable: saving: %w", err)
	}
	if err := syncDir(s.dir); err != nil {
		return fmt.Errorf("durable: saving: %w", err)
	}
	return nil
}

// write writes a snapshot into a file of its own, through to the disk.
func (s *Store) write(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = s.Snapshot(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes sure that a file which was renamed keeps its new name.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Run saves once in a while until ctx ends, and tells how that went. Saved may be
// nil.
func (s *Store) Run(ctx context.Context, every time.Duration, saved func(error)) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := s.Save(); saved != nil {
			saved(err)
		}
	}
}

// Close saves once more and lets others open the folder. The store itself
// still decides, but nothing of that is kept.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.save(), s.lock.Close())
}
