package rules

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

// MaxTotalBytes is the largest size of all files together.
const MaxTotalBytes = 64 << 20

// Load reads a rule file, or every file in a directory and its subdirectories,
// whatever the file names. It skips names that begin with a dot and backup files of
// editors. If the content of a file is wrong, the error is [Errors]. It reads the files
// as they are; [Source.Load] waits until they are complete.
func Load(path string, o *Options) (*Set, error) {
	r := read(path)
	if r.unfit != nil {
		return nil, r.unfit
	}
	return NewSource(path, o).parse(r)
}

// A reading is what the files at a path contained at one moment.
type reading struct {
	files []File
	err   error // why there are no files

	version
	begun, ended time.Time

	sealed  bool      // each file has a checksum that matches
	changed time.Time // of the directories, and of the files without such a checksum

	// unfit is why these files cannot take effect however long they stay as they
	// are: the checksum of a file does not match, or they changed during the reading.
	unfit error
}

// A version identifies what was read. Equal versions are readings between which the
// files did not change, or changed in a way that the file system does not record.
type version struct {
	names   [sha256.Size]byte
	content [sha256.Size]byte // names and text, or the error
	scan    [sha256.Size]byte // identity of the files
}

// read returns the files at a path as they were at one moment. Symbolic links can
// change while it reads, which would mix old and new rules; so it reads until two
// reads in a row agree.
func read(path string) *reading {
	const tries = 10
	r := readOnce(path)
	for range tries {
		before := r.version
		if r = readOnce(path); r.version == before {
			return r
		}
	}
	r.unfit = fmt.Errorf("%s: files changed during each of %d reads", path, tries)
	return r
}

func readOnce(path string) *reading {
	r := &reading{sealed: true, begun: time.Now()}
	s := scanPath(path)
	r.changed, r.err = s.edited, s.err
	r.readAll(s.files)
	if r.err != nil {
		r.files, r.sealed = nil, false
	}
	r.identify(s.identity())
	r.ended = time.Now()
	return r
}

func (r *reading) readAll(files []scannedFile) {
	total := 0
	for _, f := range files {
		if r.err != nil {
			return
		}
		text, err := readFile(f.name)
		total += len(text)
		switch {
		case err != nil:
			r.err = fmt.Errorf("%s: %w", f.name, withoutPath(err))
		case total > MaxTotalBytes:
			r.err = fmt.Errorf("%s: rule files are larger than %d bytes in total", f.name, MaxTotalBytes)
		default:
			r.add(File{Name: f.name, Text: text}, f.changed)
		}
	}
}

// add adds a file and the time at which it was changed.
func (r *reading) add(f File, changed time.Time) {
	r.files = append(r.files, f)
	state := checkSeal(f.Text)
	if state == sealed {
		return
	}
	r.sealed = false
	r.changed = later(r.changed, changed)
	if state == sealBroken && r.unfit == nil {
		r.unfit = Errors{{File: f.Name, Line: 1, Reason: brokenSeal}}
	}
}

// readFile returns a file's text, cut off one byte after the size limit: that is
// enough for Parse to reject it.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
}

// identify computes the version.
func (r *reading) identify(files [sha256.Size]byte) {
	names, content := sha256.New(), sha256.New()
	for _, f := range r.files {
		names.Write(fmt.Appendf(nil, "%q ", f.Name))
		content.Write(fmt.Appendf(nil, "%q %d ", f.Name, len(f.Text)))
		content.Write(f.Text)
	}
	content.Write(fmt.Append(nil, r.err))
	names.Sum(r.names[:0])
	content.Sum(r.content[:0])
	r.scan = files
}
