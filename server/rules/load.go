package rules

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
)

// maxBytes is how much all files may hold together.
const maxBytes = 64 << 20

// Load makes a set of a file, or of all files in a folder and the folders in it,
// whatever their names, except those that begin with a dot and the copies that
// editors leave behind. If anything is wrong with what the files say, the error is
// [Errors].
func Load(path string) (*Set, error) { return NewSource(path, nil).Load() }

// readFiles returns the files at a path as they were at one moment: it reads until
// it finds the same twice in a row, for links can be changed while it is reading, and
// half of the old rules with half of the new ones would be neither.
func readFiles(path string) ([]File, error) {
	const tries = 10
	files, err := readOnce(path)
	for range tries {
		before, errBefore := files, err
		files, err = readOnce(path)
		if slices.EqualFunc(files, before, sameFile) && sameError(err, errBefore) {
			return files, err
		}
	}
	return nil, fmt.Errorf("%s: changes faster than it can be read", path)
}

func sameFile(a, b File) bool { return a.Name == b.Name && bytes.Equal(a.Text, b.Text) }

func sameError(a, b error) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error()
}

func readOnce(path string) ([]File, error) {
	s := surveyOf(path)
	if s.err != nil {
		return nil, s.err
	}
	files := make([]File, 0, len(s.names))
	total := 0
	for _, name := range s.names {
		text, err := readFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, cause(err))
		}
		if total += len(text); total > maxBytes {
			return nil, fmt.Errorf("%s: more than %d bytes in all files together", name, maxBytes)
		}
		files = append(files, File{Name: name, Text: text})
	}
	return files, nil
}

// readFile returns a file's text, or one byte more than is allowed.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}
