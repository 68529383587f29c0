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

const (
	maxLinks    = 40 // symbolic links followed to resolve one path
	maxDirDepth = 32
)

// A scan lists the rule files at a path.
type scan struct {
	files  []scannedFile
	seen   map[string]bool // visited files and directories, with all links resolved
	stamps strings.Builder // of all files that were visited, and of links in their paths, which Kubernetes changes
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
	target, info, err := s.resolve(path, new(int))
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
		s.stamps.WriteString(stamp(info))
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

// resolve returns a path with all links resolved, and its file info. It counts the links.
func (s *scan) resolve(path string, links *int) (string, fs.FileInfo, error) {
	path = strings.TrimRight(path, separator)
	if path == filepath.VolumeName(path) {
		info, err := os.Lstat(path + separator)
		return path + separator, info, err
	}
	dir, name := filepath.Split(path)
	at, info, err := s.resolve(dir, links)
	if err != nil || name == "." {
		return at, info, err
	}
	next := filepath.Join(at, name)
	if info, err = os.Lstat(next); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return next, info, err
	}
	if *links++; *links > maxLinks {
		return next, nil, fmt.Errorf("more than %d symbolic links in the path", maxLinks)
	}
	s.stamps.WriteString(stamp(info))
	target, err := os.Readlink(next)
	if err != nil {
		return next, nil, err
	}
	if !filepath.IsAbs(target) {
		target = at + separator + target
	}
	return s.resolve(target, links)
}

const separator = string(filepath.Separator)

// look returns what identifies the files at a path without reading them.
func look(path string) [sha256.Size]byte { return scanPath(path).identity() }

// identity changes with the names, identities and times of the files, and of links to them.
func (s *scan) identity() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, f := range s.files {
		writeField(h, []byte(f.name))
	}
	writeField(h, fmt.Append(nil, s.err, s.stamps.String()))
	h.Sum(sum[:0])
	return sum
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
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
