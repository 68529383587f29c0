package rules

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const maxDirDepth = 32

// A scan lists the rule files at a path.
type scan struct {
	files  []scannedFile
	seen   map[string]bool // visited files and directories, with all links resolved
	stamps strings.Builder // of all files that were visited, and where links lead, which Kubernetes changes
	edited time.Time       // when a name in a visited directory changed last
	err    error           // the first error, which ends the scan
}

// A scannedFile is a rule file. Files are sorted by name within each directory.
type scannedFile struct {
	name    string
	changed time.Time
}

var errNoFiles = errors.New("no rule files in this directory")

// scanPath scans a path. An error is in the err field, because it is part of what a later scan
// is compared with.
func scanPath(path string) *scan {
	s := &scan{seen: map[string]bool{}}
	abs, err := filepath.Abs(path)
	if path == "" {
		err = errors.New("path to rules is empty")
	}
	if err != nil {
		s.err = err
		return s
	}
	s.visit(path, abs, 0)
	if s.err == nil && len(s.files) == 0 {
		s.err = fmt.Errorf("%s: %w", path, errNoFiles)
	}
	return s
}

// visit adds the file or directory at a path. Error messages use name, which is the
// path as the user wrote it.
func (s *scan) visit(name, path string, depth int) {
	info, err := os.Stat(path)
	target := ""
	if err == nil {
		target, err = filepath.EvalSymlinks(path)
	}
	switch {
	case err != nil:
		s.err = fmt.Errorf("%s: %w", name, withoutPath(err))
	case s.seen[target]:
	case info.IsDir():
		s.seen[target] = true
		s.edited = later(s.edited, changeTime(info))
		s.visitDir(name, target, depth)
	case !info.Mode().IsRegular():
		s.err = fmt.Errorf("%s: neither a regular file nor a directory", name)
	case len(s.files) == MaxFiles:
		s.err = fmt.Errorf("%s: too many rule files: at most %d are allowed", name, MaxFiles)
	default:
		s.seen[target] = true
		s.stamps.Write(fmt.Appendf(nil, "%q %q %s", name, target, stamp(info)))
		s.files = append(s.files, scannedFile{name: name, changed: changeTime(info)})
	}
}

// visitDir adds the contents of a directory, whose path has no links.
func (s *scan) visitDir(name, path string, depth int) {
	if depth == maxDirDepth {
		s.err = fmt.Errorf("%s: directories are nested more than %d levels deep", name, maxDirDepth)
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		s.err = fmt.Errorf("%s: %w", name, withoutPath(err))
		return
	}
	for _, e := range entries {
		if s.err == nil && !ignored(e.Name()) {
			s.visit(filepath.Join(name, e.Name()), filepath.Join(path, e.Name()), depth+1)
		}
	}
}

// ignored reports whether a name is not a rule file's: hidden, as are the real
// directories behind the links of Kubernetes, or a backup file of an editor.
func ignored(name string) bool {
	return name[0] == '.' || strings.HasSuffix(name, "~") || name[0] == '#'
}

// look returns what identifies the files at a path without reading them.
func look(path string) [sha256.Size]byte { return scanPath(path).identity() }

// identity changes with the names, identities and times of the files, and with where links to them lead.
func (s *scan) identity() [sha256.Size]byte {
	return sha256.Sum256(fmt.Append(nil, s.err, s.stamps.String()))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// withoutPath returns the cause of a failure without its path: messages name the path
// as the user wrote it.
func withoutPath(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
