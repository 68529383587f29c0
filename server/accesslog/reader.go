package accesslog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/internal/spelling"
	"github.com/penstock-io/penstock/server/recording"
)

// Options say what to read of logs.
type Options struct {
	// Format is one of FormatNames. Default: each log's own, by its first lines.
	Format string

	// Entries are the keys of descriptors, and where their values are. One without a value has that of
	// its default, if HasDefault, or else none.
	Entries []Entry

	// Names are those that a JSON log has for "time" and for Fields, with dots between the names of
	// nested objects. Default: the names of the format.
	Names map[string]string

	// Input is what "-" reads. Default: standard input.
	Input io.Reader

	// Unpacked wraps what is read of each log, after it was decompressed. Optional.
	Unpacked func(io.Reader) io.Reader

	// Window is how many requests are read ahead in all, so that lines may be out of order. Default: 131,072.
	Window int
}

const defaultWindow = 1 << 17

// An Entry is a key of descriptors, and its value: the value itself, "field:NAME", or "address:NAME" for an
// address that is counted by its IPv6 /64. NAME is one of Fields or, in JSON logs, any other name.
type Entry struct{ Key, Value string }

// A Request is one request of a log.
type Request struct {
	Time   int64 // Unix nanoseconds
	Spread int64 // if its log has whole seconds: evenly spread over the second, in the order of the log

	// Recorded means that Data is a line of a recording, for recording.Record.Parse. Otherwise it has
	// the values of the entries, for AppendValues. It is valid until the next request is read.
	Recorded bool
	Data     []byte
}

// AppendValues appends the values of the entries, in their order. They are empty if the line has none, and
// share the memory of the data.
func AppendValues(values []string, data []byte) []string {
	for len(data) > 0 {
		n := binary.LittleEndian.Uint32(data)
		values = append(values, viewOf(data[4:4+n]))
		data = data[4+n:]
	}
	return values
}

// maxLogs is how many logs can be open at once.
const maxLogs = 512

// A Reader reads the requests of logs in the order of time.
type Reader struct {
	sources []*source
	read    int64
	size    int64
}

// Open opens logs. A path is a file, a directory of recordings, or "-" for standard input.
func Open(paths []string, o *Options) (*Reader, error) {
	names, err := expand(paths)
	if err != nil {
		return nil, err
	}
	w, err := newWanted(o)
	if err != nil {
		return nil, err
	}
	r := &Reader{}
	o.Window = cmp.Or(o.Window, defaultWindow)
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			r.size += info.Size()
		}
		s, err := open(name, o, w, &r.read, max(o.Window/len(names), 1024))
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		r.sources = append(r.sources, s)
		if err := w.check(s); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	r.takeTurns()
	return r, nil
}

// takeTurns numbers the logs whose requests are spread.
func (r *Reader) takeTurns() {
	var whole []*source
	for _, s := range r.sources {
		if s.Whole {
			whole = append(whole, s)
		}
	}
	for i, s := range whole {
		s.turn, s.turns = i, len(whole)
	}
}

// expand replaces directories by the recordings in them.
func expand(paths []string) (names []string, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case path == "-":
		case err != nil:
			return nil, err
		case info.IsDir():
			found, _ := filepath.Glob(filepath.Join(path, "*"+recording.Suffix))
			if len(found) == 0 {
				return nil, fmt.Errorf("%s: no recording in this directory", path)
			}
			names = append(names, found...)
			continue
		}
		names = append(names, path)
	}
	if len(names) > maxLogs {
		return nil, fmt.Errorf("%d logs: at most %d can be merged; join some of them, and read standard input", len(names), maxLogs)
	}
	return names, nil
}

// Close closes the logs.
func (r *Reader) Close() (err error) {
	for _, s := range r.sources {
		err = errors.Join(err, s.close())
	}
	return err
}

// Reports returns what is known about each log.
func (r *Reader) Reports() (all []Report) {
	for _, s := range r.sources {
		all = append(all, s.Report)
	}
	return all
}

// Len returns how many logs there are.
func (r *Reader) Len() int { return len(r.sources) }

// HasLogs reports whether there is a log that is no recording.
func (r *Reader) HasLogs() bool {
	return slices.ContainsFunc(r.sources, func(s *source) bool { return s.Format != recordingFormat })
}

// HasWholeSeconds reports whether a log has times without fractions.
func (r *Reader) HasWholeSeconds() bool {
	return slices.ContainsFunc(r.sources, func(s *source) bool { return s.Whole })
}

// Progress returns how many bytes were read, and how many there are; 0 if that is not known.
func (r *Reader) Progress() (read, size int64) { return r.read, r.size }

// Next reads the next request into q, and reports whether there is one. They come in the order of Spread.
func (r *Reader) Next(q *Request) bool {
	var first *source
	var earliest *request
	for _, s := range r.sources {
		if head := s.head(); head != nil && (first == nil || head.spread < earliest.spread) {
			first, earliest = s, head
		}
	}
	if first == nil {
		return false
	}
	w := &first.window
	w.next++
	*q = Request{
		Time: earliest.time, Spread: earliest.spread,
		Recorded: first.Format == recordingFormat, Data: w.data[earliest.start:earliest.end:earliest.end],
	}
	return true
}

// wanted are the values to read of each line.
type wanted struct {
	entries []wantedValue
	others  []string // names of fields that only JSON logs have
	rest    bool     // what follows the status of a line is needed
	clients *address.Resolver
}

// A wantedValue is where the value of an entry comes from.
type wantedValue struct {
	text    string // the value itself, unless it is in the log
	field   field  // numFields and above are others
	inLog   bool
	address bool
}

func newWanted(o *Options) (*wanted, error) {
	w := &wanted{clients: address.NewResolver(nil, 0)}
	for _, e := range o.Entries {
		v := wantedValue{text: e.Value}
		name, isField := strings.CutPrefix(e.Value, "field:")
		if !isField {
			name, v.address = strings.CutPrefix(e.Value, "address:")
		}
		switch known, isKnown := fieldOfKey[e.Key]; {
		case e.Value == "" && isKnown:
			v.field, v.inLog = known, true
		case isField || v.address:
			v.field, v.inLog = w.fieldNamed(name), true
		}
		w.rest = w.rest || v.inLog && (v.field == fieldReferer || v.field == fieldUserAgent)
		w.entries = append(w.entries, v)
	}
	for name := range o.Names {
		if _, problem := fieldNamed(name); problem != "" && name != "time" {
			return nil, fmt.Errorf("field %q: no such field; the nearest is %s", name, spelling.Nearest(name, append([]string{"time"}, Fields...)))
		}
	}
	return w, nil
}

func (w *wanted) fieldNamed(name string) field {
	if f, problem := fieldNamed(name); problem == "" {
		return f
	}
	w.others = append(w.others, name)
	return numFields + field(len(w.others)-1)
}

// check returns an error if a log cannot have the fields that are wanted.
func (w *wanted) check(s *source) error {
	if s.format == nil || s.Format == recordingFormat {
		return nil
	}
	for _, v := range w.entries {
		if v.inLog && v.field >= numFields && !s.format.isJSON() {
			name := w.others[v.field-numFields]
			_, problem := fieldNamed(name)
			return fmt.Errorf("%s: a log of the format %s has no field %q: %s", s.Name, s.Format, name, problem)
		}
	}
	return nil
}

// append appends the values of a line, each after its length.
func (w *wanted) append(data []byte, l *line) []byte {
	for i := range w.entries {
		v := &w.entries[i]
		text := v.text
		switch {
		case !v.inLog:
		case v.field >= numFields:
			text = viewOf(l.others[v.field-numFields])
		default:
			text = viewOf(l.value(v.field))
		}
		if v.address && text != "" {
			text = w.clients.Key(text, nil)
		}
		data = binary.LittleEndian.AppendUint32(data, uint32(len(text)))
		data = append(data, text...)
	}
	return data
}

// viewOf returns the bytes as a text that changes with them.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
