package rulesource

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/penstock-io/penstock/internal/atomicfile"
	"github.com/penstock-io/penstock/internal/regularfile"
	"github.com/penstock-io/penstock/rules"
)

// What is kept is a checksum, the identity of the source, and the files as JSON.

// restore returns the rules that were kept.
func (r *remote) restore() (*rules.Set, error) {
	files, err := r.readKept()
	if err != nil {
		return nil, fmt.Errorf("those of the last run not restored: %w", err)
	}
	return r.parse(files)
}

func (r *remote) readKept() (files []rules.File, err error) {
	f, err := regularfile.Open(r.o.Keep, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	kept, err := io.ReadAll(io.LimitReader(f, 4*maxBody))
	if err != nil {
		return nil, err
	}
	const sum = sha256.Size
	switch {
	case len(kept) < 2*sum || sha256.Sum256(kept[sum:]) != [sum]byte(kept[:sum]):
		return nil, errors.New("checksum does not match")
	case !bytes.Equal(kept[sum:2*sum], r.id[:]):
		return nil, errors.New("they are of another source")
	}
	return files, json.Unmarshal(kept[2*sum:], &files)
}

// keep writes files that are in use.
func (r *remote) keep(files []rules.File) {
	if r.o.Keep == "" {
		return
	}
	text, err := json.Marshal(files)
	if err == nil {
		text = append(r.id[:], text...)
		sum := sha256.Sum256(text)
		err = atomicfile.Replace(r.o.Keep, append(sum[:], text...), 0o600)
	}
	if err != nil && r.o.OnKeepError != nil {
		r.o.OnKeepError(err)
	}
}

// checkKeep finds a wrong path at the start, rather than in the first outage. It does not try to write: a full disk
// must not keep a program from starting.
func checkKeep(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("Options.Keep: %s is a directory, want a file", path)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("Options.Keep: its directory: %w", err)
	}
	return nil
}
