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
	target, info, err := s.resolveLinks(path)
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

// resolveLinks returns a path with all links resolved, and its file info. It marks every
// name on the way as one to watch.
func (s *scan) resolveLinks(path string) (string, fs.FileInfo, error) {
	at, rest := splitRoot(path)
	info, err := os.Lstat(at)
	for links := 0; err == nil && len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		s.watchName(at, name)
		next := filepath.Join(at, name)
		if info, err = os.Lstat(next); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return at, nil, fmt.Errorf("more than %d symbolic links in the path", maxLinks)
		}
		s.stamps.WriteString(stamp(info))
		at, rest, err = followLink(at, next, rest)
	}
	return at, info, err
}

// followLink returns the directory in which to continue after a link, and the rest of
// the path from there.
func followLink(at, link string, rest []string) (string, []string, error) {
	target, err := os.Readlink(link)
	if filepath.IsAbs(target) {
		root, parts := splitRoot(target)
		return root, append(parts, rest...), err
	}
	return at, append(splitPath(target), rest...), err
}

func splitRoot(path string) (root string, parts []string) {
	volume := filepath.VolumeName(path)
	return volume + string(filepath.Separator), splitPath(path[len(volume):])
}

// splitPath returns the names in a path, without empty ones and ".".
func splitPath(path string) (parts []string) {
	for part := range strings.SplitSeq(filepath.ToSlash(path), "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

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
