// Package durable keeps what a process must not lose in files of a directory, so that
// quotas survive a restart. A [Dir] is such a directory, a [Store] a memory store in it.
//
// A file is written under another name, synced and renamed: whenever the process or the
// machine stops, the last saved snapshot is complete. Decisions after it are lost. A
// damaged file is renamed and never loaded, not even in part.
package durable

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/regularfile"
)

// snapshotName is the file of a store's state.
const snapshotName = "memory.snapshot"

// A Store is a [penstock.Memory] with snapshots in a directory. It must be closed.
type Store struct {
	*penstock.Memory
	dir       *Dir
	loadError error

	mu     sync.Mutex
	closed bool
}

// OpenStore returns the store of a directory. The options are those of the memory store,
// with Durable set; nil is all defaults.
//
// If the snapshot is damaged, or of another version, it is renamed and the store starts empty: [Store.LoadError]
// returns why. Any other error is returned.
func (d *Dir) OpenStore(o *penstock.MemoryOptions) (*Store, error) {
	s := &Store{dir: d}
	if err := s.load(o); err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	return s, nil
}

// load restores the last snapshot, or starts with an empty store.
func (s *Store) load(o *penstock.MemoryOptions) error {
	own := *cmp.Or(o, &penstock.MemoryOptions{})
	own.Durable = true
	err := s.restore(&own)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, penstock.ErrBadSnapshot):
		if err = s.setAside(err); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	s.Memory = penstock.NewMemory(&own)
	return nil
}

func (s *Store) restore(o *penstock.MemoryOptions) error {
	f, err := regularfile.Open(s.dir.Path(snapshotName), os.O_RDONLY, 0)
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

// setAside renames a snapshot that cannot be restored.
func (s *Store) setAside(reason error) error {
	kind := "damaged"
	if errors.Is(reason, penstock.ErrSnapshotVersion) {
		kind = "other-version"
	}
	path, err := s.dir.SetAside(snapshotName, kind)
	if err != nil {
		return fmt.Errorf("renaming the %s snapshot: %w", kind, err)
	}
	s.loadError = fmt.Errorf("%w: renamed to %s; starting with an empty store", reason, path)
	return nil
}

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
	if err := s.dir.WriteFile(snapshotName, s.Snapshot); err != nil {
		return fmt.Errorf("durable: saving: %w", err)
	}
	return nil
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

// Close saves a last snapshot. The store still decides after that, but its decisions are not
// saved.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.save()
}
