package rules

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	maxLinks       = 40 // from a path to what it stands for
	maxFolderDepth = 32
)

// A survey is what there is at a path: the rule files, and the places where a
// change would matter, which are more than where the files are. A link on the way can
// be changed, as Kubernetes does, and a folder on the way be removed and made anew.
type survey struct {
	names  []string         // of rule files, in order
	places map[string]place // by folder, with all links resolved
	seen   map[string]bool  // files and folders met, with all links resolved
	err    error            // the first, after which there is no looking further
}

// A place is the names in a folder that matter; nil means all of them.
type place map[string]bool

// surveyOf looks at a path. What it finds wrong is in err.
func surveyOf(path string) *survey {
	s := &survey{places: map[string]place{}, seen: map[string]bool{}}
	abs, err := filepath.Abs(path)
	if path == "" {
		err = errors.New("no path to rules was given")
	}
	if err != nil {
		s.err = err
		return s
	}
	s.look(path, abs, 0)
	if s.err == nil && len(s.names) == 0 {
		s.err = fmt.Errorf("%s: no rule files in this folder", path)
	}
	return s
}

// look adds what is at a path, which messages call by another name.
func (s *survey) look(name, path string, depth int) {
	target, info, err := s.resolve(path)
	switch {
	case err != nil:
		s.err = fmt.Errorf("%s: %w", name, cause(err))
	case s.seen[target]:
	case info.IsDir():
		s.seen[target] = true
		s.folder(name, target, depth)
	case !info.Mode().IsRegular():
		s.err = fmt.Errorf("%s: neither a file nor a folder", name)
	case len(s.names) == maxFiles:
		s.err = fmt.Errorf("%s: one file too many: want at most %d", name, maxFiles)
	default:
		s.seen[target] = true
		s.names = append(s.names, name)
	}
}

// folder adds what is in a folder, which is at a path without links.
func (s *survey) folder(name, path string, depth int) {
	s.places[path] = nil
	if depth == maxFolderDepth {
		s.err = fmt.Errorf("%s: want at most %d folders within each other", name, maxFolderDepth)
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		s.err = fmt.Errorf("%s: %w", name, cause(err))
		return
	}
	for _, e := range entries {
		if s.err == nil && !ignored(e.Name()) {
			s.look(filepath.Join(name, e.Name()), filepath.Join(path, e.Name()), depth+1)
		}
	}
}

// ignored says of a name in a folder that it is no rule file's: hidden, as are the
// real folders behind Kubernetes' links, or a copy that an editor has left.
func ignored(name string) bool {
	return name[0] == '.' || strings.HasSuffix(name, "~") || name[0] == '#'
}

// resolve returns what a path stands for, and notes all places on the way.
func (s *survey) resolve(path string) (string, fs.FileInfo, error) {
	at, rest := splitRoot(path)
	info, err := os.Lstat(at)
	for links := 0; err == nil && len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		s.note(at, name)
		next := filepath.Join(at, name)
		if info, err = os.Lstat(next); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return at, nil, fmt.Errorf("more than %d links to follow", maxLinks)
		}
		at, rest, err = follow(at, next, rest)
	}
	return at, info, err
}

// follow returns where a link leads, and what then is left of the way.
func follow(at, link string, rest []string) (string, []string, error) {
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

// splitPath returns the names in a path that lead anywhere.
func splitPath(path string) (parts []string) {
	for part := range strings.SplitSeq(filepath.ToSlash(path), "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// note notes that a name in a folder matters.
func (s *survey) note(folder, name string) {
	names, ok := s.places[folder]
	if !ok {
		names = place{}
		s.places[folder] = names
	}
	if names != nil {
		names[name] = true
	}
}

// concerns reports whether a change at a path matters.
func (s *survey) concerns(path string) bool {
	names, ok := s.places[filepath.Dir(path)]
	_, isFolder := s.places[path]
	return isFolder || ok && (names == nil || names[filepath.Base(path)])
}

// cause returns the reason of a failure without the path, which is said in
// another way.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
