package recording

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/regularfile"
	"github.com/penstock-io/penstock/internal/siphash"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// Options configure a [Recorder].
type Options struct {
	// Dir is where the files are; it is made if it does not exist.
	Dir string

	// MaxBytes bounds all files together: the oldest are removed. Default: 1 GiB.
	MaxBytes int64

	// Sample is the share of keys that are recorded. A key is recorded always or never. Default: 1.
	Sample float64

	// Hash are the keys of entries whose values are hashed, or "*" for all.
	Hash []string

	// Log is told when files cannot be written. Required.
	Log *slog.Logger
}

const (
	defaultMaxBytes = 1 << 30
	minMaxBytes     = 1 << 20
	filesInAll      = 16      // so that removing one removes little
	maxQueue        = 4 << 20 // bytes that wait to be written
	flushInterval   = 100 * time.Millisecond
	keyName         = "hash.key"
	header          = "# penstock recording 1\n"
	ownerOnly       = 0o600
	ownerOnlyDir    = 0o700
	fileTime        = "20060102T150405.000000000Z"
)

// A Recorder writes requests to files. Recording a request takes as long as copying it: when it cannot be written fast
// enough, it is dropped.
type Recorder struct {
	Recorded, Dropped atomic.Uint64 // requests

	options Options
	all     bool // values of all entries are hashed
	hash    *siphash.Key
	below   uint64 // hashes of keys that are recorded

	mu    sync.Mutex
	queue []byte
	spare []byte
	wake  chan struct{} // the queue is half full

	file     *os.File
	size     int64
	failing  bool
	fileSize int64 // at which the next file begins
}

// Open makes the directory and the first file.
func Open(o Options) (*Recorder, error) {
	o.MaxBytes, o.Sample = cmp.Or(o.MaxBytes, defaultMaxBytes), cmp.Or(o.Sample, 1)
	if o.MaxBytes < minMaxBytes {
		return nil, fmt.Errorf("%d bytes for recordings: want at least %d", o.MaxBytes, minMaxBytes)
	}
	r := &Recorder{options: o, wake: make(chan struct{}, 1), all: slices.Contains(o.Hash, "*"), fileSize: o.MaxBytes / filesInAll}
	r.below = math.MaxUint64
	if o.Sample < 1 {
		r.below = uint64(o.Sample * math.MaxUint64)
	}
	if err := os.MkdirAll(o.Dir, ownerOnlyDir); err != nil {
		return nil, err
	}
	key, err := readKey(filepath.Join(o.Dir, keyName))
	if err != nil {
		return nil, err
	}
	r.hash = siphash.NewKey(key)
	return r, r.nextFile()
}

// readKey returns the key of the hash function, so that values and samples stay the same over restarts.
func readKey(path string) (key [siphash.KeySize]byte, err error) {
	f, err := regularfile.Open(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		_, _ = rand.Read(key[:]) // never fails
		return key, os.WriteFile(path, key[:], ownerOnly)
	}
	if err != nil {
		return key, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	text, err := io.ReadAll(f)
	if err == nil && len(text) != len(key) {
		err = fmt.Errorf("%s: has %d bytes, want %d", path, len(text), len(key))
	}
	copy(key[:], text)
	return key, err
}

// Record records a request. It neither blocks nor keeps its arguments.
func (r *Recorder) Record(set *rules.Set, domain string, ds []engine.Descriptor, denied bool) {
	var room [8]engine.Descriptor
	record := Record{Time: time.Now().UnixNano(), Domain: domain, Denied: denied, Descriptors: room[:0]}
	for i := range ds {
		if d := &ds[i]; d.Own == nil && d.Cost != 0 && r.keeps(set, domain, d) {
			record.Descriptors = append(record.Descriptors, engine.Descriptor{Entries: r.hashed(d.Entries), Cost: d.Cost})
		}
	}
	if len(record.Descriptors) == 0 {
		return
	}
	var buf [512]byte
	r.enqueue(record.appendLine(buf[:0]))
}

// keeps reports whether the key of a descriptor is in the sample: the key under which the rules count it.
func (r *Recorder) keeps(set *rules.Set, domain string, d *engine.Descriptor) bool {
	if r.below == math.MaxUint64 {
		return true
	}
	var buf [256]byte
	rule, key := (*rules.Rule)(nil), buf[:0]
	if set != nil {
		rule, key = set.Domain(domain).Match(d.Entries, key)
	}
	if rule == nil {
		key = rules.AppendKey(key[:0], d.Entries)
	}
	return r.hash.Sum(string(key)) <= r.below
}

// hashed returns entries with the values hashed that must not be recorded.
func (r *Recorder) hashed(entries []rules.Entry) []rules.Entry {
	if len(r.options.Hash) == 0 {
		return entries
	}
	changed := slices.Clone(entries)
	for i := range changed {
		if e := &changed[i]; r.all || slices.Contains(r.options.Hash, e.Key) {
			e.Value = fmt.Sprintf("h-%016x", r.hash.Sum(e.Key+"="+e.Value))
		}
	}
	return changed
}

// enqueue adds a line to those that wait, or drops it.
func (r *Recorder) enqueue(line []byte) {
	r.mu.Lock()
	fits := len(line) <= maxLine && len(r.queue)+len(line) <= maxQueue
	if fits {
		r.queue = append(r.queue, line...)
	}
	half := len(r.queue) > maxQueue/2
	r.mu.Unlock()
	if !fits {
		r.Dropped.Add(1)
	}
	if half {
		select {
		case r.wake <- struct{}{}:
		default: // it is awake
		}
	}
}

// Run writes what is recorded until the context ends.
func (r *Recorder) Run(ctx context.Context) {
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-r.wake:
		case <-ctx.Done():
		}
		r.flush()
	}
}

// Close writes the rest. Run must have returned.
func (r *Recorder) Close() error {
	r.flush()
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// flush writes the lines that wait.
func (r *Recorder) flush() {
	r.mu.Lock()
	r.queue, r.spare = r.spare[:0], r.queue
	r.mu.Unlock()
	for lines := r.spare; len(lines) > 0; {
		n := min(len(lines), int(max(r.fileSize-r.size, 0)))
		n += bytes.IndexByte(lines[n:], '\n') + 1 // the whole line
		r.write(lines[:n])
		lines = lines[n:]
	}
}

// write writes lines to a file that has room for the first of them.
func (r *Recorder) write(lines []byte) {
	count := uint64(bytes.Count(lines, []byte("\n")))
	err := error(nil)
	if r.size >= r.fileSize || r.file == nil {
		err = r.nextFile()
	}
	if err == nil {
		_, err = r.file.Write(lines)
	}
	if err != nil {
		r.Dropped.Add(count)
		r.fail(err)
		return
	}
	r.size += int64(len(lines))
	r.failing = false
	r.Recorded.Add(count)
}

// fail logs the first failure. The next lines go to a new file, because this one may end within a line.
func (r *Recorder) fail(err error) {
	if !r.failing {
		r.options.Log.Warn("requests not recorded", "err", err)
	}
	r.failing = true
	if r.file != nil {
		_ = r.file.Close() // the first error was reported
		r.file = nil
	}
}

// nextFile begins a file, after the oldest were removed.
func (r *Recorder) nextFile() error {
	if r.file != nil {
		_ = r.file.Close() // its writes succeeded
		r.file = nil
	}
	if err := r.removeOldest(); err != nil {
		return err
	}
	name := filepath.Join(r.options.Dir, time.Now().UTC().Format(fileTime)+Suffix)
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, ownerOnly)
	if err != nil {
		return err
	}
	r.file, r.size = file, int64(len(header))
	_, err = file.WriteString(header)
	return err
}

// removeOldest removes files until there is room for one more.
func (r *Recorder) removeOldest() error {
	names, err := filepath.Glob(filepath.Join(r.options.Dir, "*"+Suffix))
	if err != nil {
		return err
	}
	slices.Sort(names) // they begin with a time
	total := int64(0)
	for _, name := range slices.Backward(names) {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if total += info.Size(); total > r.options.MaxBytes-r.fileSize-maxLine {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxLine is the longest line that is written, and that can be read again.
const maxLine = 60 << 10
