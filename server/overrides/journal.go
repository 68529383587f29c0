package overrides

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/penstock-io/penstock/internal/atomicfile"
	"github.com/penstock-io/penstock/internal/regularfile"
)

// A journal is a file of records, one JSON array in each line: rule, key, and the record's
// text. The last one of an override holds. A process that is killed while it writes leaves
// an incomplete last line, which is cut off.
type journal struct {
	path  string
	file  *os.File
	lines int
}

// openJournal reads the file into the set, and rewrites it if much of it is out of date.
func (s *Set) openJournal(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := regularfile.Open(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	s.journal = &journal{path: path, file: f}
	if err := s.readJournal(); err != nil {
		_ = f.Close()
		return fmt.Errorf("overrides: %s: %w", path, err)
	}
	s.purge(retention)
	if s.journal.lines > 2*len(s.entries) {
		return s.rewriteJournal()
	}
	return nil
}

// readJournal reads all complete lines. Damaged ones are skipped and reported: the others
// are worth more than none.
func (s *Set) readJournal() error {
	j, end, damaged := s.journal, int64(0), 0
	in := bufio.NewReader(j.file)
	var records []Record
	for {
		line, err := in.ReadBytes('\n')
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
			s.log.Error("the file of overrides has a damaged line", "file", j.path, "line", j.lines, "err", err)
		}
		if len(records) == maxEntries/8 { // in parts, between which those that have ended make room
			s.applyAll(records)
			records = records[:0]
		}
	}
	s.applyAll(records)
	s.log.Info("overrides read", "file", j.path, "overrides", len(s.entries), "damaged", damaged)
	return errors.Join(j.file.Truncate(end), seek(j.file, end))
}

func parseLine(line []byte) (Record, error) {
	var parts [3]string
	if err := json.Unmarshal(line, &parts); err != nil {
		return Record{}, err
	}
	return ParseRecord(parts[0]+"\x00"+parts[1], parts[2])
}

func (r *Record) line() []byte {
	text, _ := json.Marshal([3]string{r.Rule, r.Key, fmt.Sprintf("%d %s", r.Version, r.Value())})
	return append(text, '\n')
}

// appendJournal adds records to the file, if there is one. With sync it returns when they
// are on the disk. A file that is too long is rewritten before, because the set may not have
// the records yet.
func (s *Set) appendJournal(records []Record, sync bool) error {
	j := s.journal
	if j == nil {
		return nil
	}
	if j.lines > 4*maxEntries {
		s.compactJournal()
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

// compactJournal rewrites the file, if there is one. If that fails, it only stays long.
func (s *Set) compactJournal() {
	if s.journal == nil {
		return
	}
	if err := s.rewriteJournal(); err != nil {
		s.log.Error("the file of overrides was not rewritten", "err", err)
	}
}

// rewriteJournal replaces the file by one with the last record of each override.
func (s *Set) rewriteJournal() error {
	j := s.journal
	temporary, err := regularfile.Open(j.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("overrides: %w", err)
	}
	out := bufio.NewWriter(temporary)
	for _, e := range s.entries {
		_, _ = out.Write(e.record.line()) // Flush returns the error
	}
	err = errors.Join(out.Flush(), temporary.Sync())
	if err == nil {
		err = os.Rename(temporary.Name(), j.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("overrides: %w", err), temporary.Close(), os.Remove(temporary.Name()))
	}
	_ = j.file.Close() // replaced
	j.file, j.lines = temporary, len(s.entries)
	return atomicfile.SyncDir(filepath.Dir(j.path))
}

func (j *journal) close() error { return errors.Join(j.file.Sync(), j.file.Close()) }
