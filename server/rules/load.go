package rules

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
)

// maxTotalBytes bounds the size of all files together.
const maxTotalBytes = 64 << 20

// Load reads a rule file, or every file in a directory and its subdirectories,
// whatever the file names. It skips names that begin with a dot and backup files of
// editors. If the content of a file is wrong, the error is [Errors].
func Load(path string) (*Set, error) { return NewSource(path, nil).Load() }

// readFiles returns the files at a path as they were at one moment. Symbolic links can
// change while it reads, which would mix old and new rules; so it reads until two
// reads in a row agree.
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
	return nil, fmt.Errorf("%s: files changed during each of %d reads", path, tries)
}

func sameFile(a, b File) bool { return a.Name == b.Name && bytes.Equal(a.Text, b.Text) }

func sameError(a, b error) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error()
}

func readOnce(path string) ([]File, error) {
	s := scanPath(path)
	if s.err != nil {
		return nil, s.err
	}
	files := make([]File, 0, len(s.files))
	total := 0
	for _, name := range s.files {
		text, err := readFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, withoutPath(err))
		}
		if total += len(text); total > maxTotalBytes {
			return nil, fmt.Errorf("%s: rule files are larger than %d bytes in total", name, maxTotalBytes)
		}
		files = append(files, File{Name: name, Text: text})
	}
	return files, nil
}

// readFile returns a file's text, cut off one byte after the size limit: that is
// enough for Parse to reject it.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}
