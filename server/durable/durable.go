// Package durable saves the state of a memory store in a file, so that quotas survive a
// restart of the process.
//
// A snapshot is written to a new file, synced and renamed: whenever the process or the
// machine stops, the last saved snapshot is complete. Decisions after it are lost. A
// damaged file is renamed and never loaded, not even in part.
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

// The files in a store's directory.
const (
	snapshotName = "memory.snapshot"
	newName      = "memory.snapshot.new"
	damagedName  = "memory.snapshot.damaged-"
	lockName     = "lock"
)

// A Store is a [penstock.Memory] with snapshots in a directory. It must be closed.
type Store struct {
	*penstock.Memory
	dir       string
	lock      *os.File
	loadError error

	mu     sync.Mutex
	closed bool
}

// Open returns the store of a directory, which is created if it does not exist. The
// directory is locked until the store is closed or the process ends. The options are those
// of the memory store, with Durable set; nil is all defaults.
//
// If the snapshot is damaged, it is renamed and the store starts empty: [Store.LoadError]
// returns why. Any other error is returned.
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

// load restores the last snapshot, or starts with an empty store.
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
		if err = s.renameDamaged(err); err != nil {
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

// renameDamaged renames a damaged snapshot, so that it can be examined. The name is unique.
func (s *Store) renameDamaged(damage error) error {
	name := s.path(damagedName + time.Now().UTC().Format("20060102T150405.000000000"))
	if err := os.Rename(s.path(snapshotName), name); err != nil {
		return fmt.Errorf("renaming the damaged snapshot: %w", err)
	}
	s.loadError = fmt.Errorf("%w: renamed to %s; starting with an empty store", damage, name)
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// LoadError returns why the store started empty although there was a snapshot, and the new
// name of that file. It is nil otherwise.
func (s *Store) LoadError() error { return s.loadError }

var errClosed = errors.New("durable: store is closed")

// Save writes a snapshot. If that fails, the previous one stays.
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

// write writes a snapshot to a new file, and syncs it.
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

// syncDir makes a rename in the directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Run saves at every interval until ctx ends. It calls saved with each result, unless that
// is nil.
func (s *Store) Run(ctx context.Context, interval time.Duration, saved func(error)) {
	t := time.NewTicker(interval)
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

// Close saves a last snapshot and unlocks the directory. The store still decides after
// that, but its decisions are not saved.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.save(), s.lock.Close())
}
