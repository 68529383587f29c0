package overrides

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// A journal is a file of records, one JSON array in each line: rule, key, and the record's
// text. The last one of an override holds. A process that is killed while it writes leaves
// an incomplete last line, which is cut off.
type journal struct {
	path  string
	file  *os.File
	lines int
}

// maxLine bounds a line: every byte of a record can be escaped.
const maxLine = 8 * maxStored

// openJournal reads the file into the book, and rewrites it if much of it is out of date.
func (b *Book) openJournal(path string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	b.journal = &journal{path: path, file: f}
	if err := b.readJournal(); err != nil {
		_ = f.Close()
		return fmt.Errorf("overrides: %s: %w", path, err)
	}
	b.purge(retention)
	if b.journal.lines > 2*len(b.entries) {
		return b.compactJournal()
	}
	return nil
}

// readJournal reads all complete lines. Damaged ones are skipped and reported: the others
// are worth more than none.
func (b *Book) readJournal() error {
	j, end, damaged := b.journal, int64(0), 0
	in := bufio.NewReaderSize(j.file, maxLine)
	var records []record
	for {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			break // an incomplete line was never acknowledged
		}
		if err != nil {
			return err
		}
		j.lines++
		end += int64(len(line))
		if r, err := parseLine(line); err == nil {
			records = append(records, r)
		} else if damaged++; damaged == 1 {
			b.log.Error("the file of overrides has a damaged line", "file", j.path, "line", j.lines, "err", err)
		}
		if len(records) == maxEntries/8 { // in parts, between which those that have ended make room
			b.applyAll(records)
			records = records[:0]
		}
	}
	b.applyAll(records)
	b.log.Info("overrides read", "file", j.path, "overrides", len(b.entries), "damaged", damaged)
	return errors.Join(j.file.Truncate(end), seek(j.file, end))
}

// readLine returns a line with its end. The error of an incomplete one is io.EOF.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := slices.Clone(line) // no record is so long
	rest, err := in.ReadBytes('\n')
	return append(long, rest...), err
}

func parseLine(line []byte) (record, error) {
	var parts [3]string
	if err := json.Unmarshal(line, &parts); err != nil {
		return record{}, err
	}
	return parseRecord(parts[0]+"\x00"+parts[1], parts[2])
}

func (r *record) line() []byte {
	text, _ := json.Marshal([3]string{r.Rule, r.Key, fmt.Sprintf("%d %s", r.version, r.value())})
	return append(text, '\n')
}

// appendJournal adds records to the file, if there is one. With sync it returns when they
// are on the disk. A file that is too long is rewritten before, because the book may not have
// the records yet; if that fails, the file only stays long.
func (b *Book) appendJournal(records []record, sync bool) error {
	j := b.journal
	if j == nil {
		return nil
	}
	if j.lines > 4*maxEntries {
		if err := b.compactJournal(); err != nil {
			b.log.Error("the file of overrides was not rewritten", "err", err)
		}
	}
	var text []byte
	for i := range records {
		text = append(text, records[i].line()...)
	}
	at, err := j.file.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = j.file.Write(text)
	}
	if err == nil && sync {
		err = j.file.Sync()
	}
	if err != nil { // without a part of a line, so that the next one can be read
		return errors.Join(fmt.Errorf("overrides: %w", err), j.file.Truncate(at), seek(j.file, at))
	}
	j.lines += len(records)
	return nil
}

func seek(f *os.File, at int64) error {
	_, err := f.Seek(at, io.SeekStart)
	return err
}

// compactJournal replaces the file by one with the last record of each override.
func (b *Book) compactJournal() error {
	j := b.journal
	temporary, err := os.OpenFile(j.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	out := bufio.NewWriter(temporary)
	for _, e := range b.entries {
		_, _ = out.Write(e.record.line()) // Flush returns the error
	}
	err = errors.Join(out.Flush(), temporary.Sync())
	if err == nil {
		err = os.Rename(temporary.Name(), j.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("overrides: %w", err), temporary.Close(), remove(temporary.Name()))
	}
	_ = j.file.Close() // replaced
	j.file, j.lines = temporary, len(b.entries)
	return syncDir(filepath.Dir(j.path))
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncDir makes a rename in the directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (j *journal) close() error { return errors.Join(j.file.Sync(), j.file.Close()) }
