package rules

import (
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

// A scan lists the rule files at a path, and the directories in which a change can
// affect them. These are more than the directories of the files: a symbolic link in
// the path can be changed, as Kubernetes does, and a parent directory can be removed
// and created again.
type scan struct {
	files  []scannedFile
	dirs   map[string]nameSet // names to watch, by directory with all links resolved
	seen   map[string]bool    // visited files and directories, with all links resolved
	stamps strings.Builder    // of all files and links that were visited
	edited time.Time          // when a name in a visited directory changed last
	err    error              // the first error, which ends the scan
}

// A scannedFile is a rule file. Files are sorted by name within each directory.
type scannedFile struct {
	name    string
	changed time.Time
}

// A nameSet holds the names in a directory whose changes matter; nil means all.
type nameSet map[string]bool

var errNoFiles = errors.New("no rule files in this directory")

// scanPath scans a path. An error is in the err field, because even a failed scan
// lists directories to watch.
func scanPath(path string) *scan {
	s := &scan{dirs: map[string]nameSet{}, seen: map[string]bool{}}
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
	s.dirs[path] = nil
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

// resolve returns a path with all links resolved, and its file info. It marks every name on
// the way as one to watch, and counts the links.
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
	if name != ".." {
		s.watchName(at, name)
	}
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

// watchName marks a name in a directory as one to watch.
func (s *scan) watchName(dir, name string) {
	names, ok := s.dirs[dir]
	if !ok {
		names = nameSet{}
		s.dirs[dir] = names
	}
	if names != nil {
		names[name] = true
	}
}

// affects reports whether a change at a path can affect the rules.
func (s *scan) affects(path string) bool {
	names, ok := s.dirs[filepath.Dir(path)]
	_, isDir := s.dirs[path]
	return isDir || ok && (names == nil || names[filepath.Base(path)])
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
