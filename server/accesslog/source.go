package accesslog

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// A Report says how well a log was understood.
type Report struct {
	Name     string `json:"name"`
	Format   string `json:"format"`         // "" if no line was understood
	Lines    int64  `json:"lines"`          // without comments and empty lines
	Bad      int64  `json:"not_understood"` // lines
	FirstBad int64  `json:"first_bad_line"` // its number; 0 if there is none
	Late     int64  `json:"late"`           // lines that were too far behind others to be sorted
	Whole    bool   `json:"whole_seconds"`  // its times have no fractions
	AtEnd    bool   `json:"at_end"`         // its times are of the end of requests …
	Timed    int64  `json:"with_duration"`  // … but for so many lines, which have a duration
	Broken   string `json:"ends_early"`     // why it could not be read to its end
	format   *format
}

// A source is one log.
type source struct {
	Report
	options *Options
	wants   *wanted
	file    io.Closer
	in      *bufio.Reader
	read    *int64 // bytes of the file, compressed or not

	json     jsonReader
	times    int      // how many of its values are other times
	columns  []string // of a CloudFront log
	line     line
	scratch  []byte
	lastDate [26]byte
	lastTime int64

	window window
	turn   int   // of the log, among those with whole seconds …
	turns  int   // … of which there are so many
	number int64 // of the line
	ended  bool
}

const (
	maxLine    = 64 << 10
	sampleSize = 1000 // lines from which the format is detected
)

// open opens a log, compressed or not, and reads its beginning.
func open(name string, o *Options, w *wanted, read *int64, room int) (*source, error) {
	s := &source{Report: Report{Name: name}, options: o, wants: w, read: read}
	file := o.Input
	if file == nil {
		file = os.Stdin
	}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		file, s.file = f, f
	}
	if err := s.decompress(countingReader{file, read}); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), s.close())
	}
	if name := o.Format; name != "" {
		s.setFormat(formatNamed(name))
	}
	s.window.room = room
	s.detect()
	return s, nil
}

func (s *source) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

type countingReader struct {
	io.Reader
	n *int64
}

func (r countingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	*r.n += int64(n)
	return n, err
}

// decompress unpacks what begins as gzip does.
func (s *source) decompress(in io.Reader) error {
	packed := bufio.NewReaderSize(in, 4*maxLine)
	unpacked := io.Reader(packed)
	if begin, _ := packed.Peek(2); bytes.Equal(begin, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(packed)
		if err != nil {
			return err
		}
		unpacked = z
	}
	if s.options.Unpacked != nil {
		unpacked = s.options.Unpacked(unpacked)
	}
	s.in = bufio.NewReaderSize(unpacked, 4*maxLine) // packed itself, if there is nothing to unpack
	return nil
}

// detect finds out the format, and whether times have fractions, from what is in the buffer.
func (s *source) detect() {
	sample, _ := s.in.Peek(4 * maxLine)
	seen, fractions := 0, 0
	for len(sample) > 0 && seen < sampleSize {
		text, rest, ended := bytes.Cut(sample, []byte("\n"))
		if sample = rest; !ended && len(rest) == 0 && seen > 0 {
			break // it may be the beginning of a line
		}
		text = bytes.TrimRight(text, "\r")
		if s.isComment(text) {
			continue
		}
		if s.format == nil {
			s.setFormat(s.detectFormat(text))
		}
		var l line
		if s.format != nil && s.parse(text, &l) {
			seen++
			if l.time%int64(time.Second) != 0 {
				fractions++
			}
		}
	}
	s.Whole = seen > 0 && fractions == 0 && s.Format != recordingFormat
}

func (s *source) setFormat(f *format) {
	if f == nil {
		return
	}
	s.format, s.Format, s.AtEnd = f, f.name, f.atEnd
	if f.isJSON() {
		s.setJSON(f.json)
	}
}

// parse reports whether it understands a line.
func (s *source) parse(text []byte, l *line) bool {
	return s.format.parse(s, text, l) && l.time >= minTime && l.time < maxTime
}

// isComment reports whether a line is a comment, which may have the names of columns.
func (s *source) isComment(text []byte) bool {
	if names, ok := bytes.CutPrefix(text, columnsComment); ok {
		s.columns = nil // without names, those that are usual
		s.columns = append(s.columns, strings.Fields(string(names))...)
	}
	return len(text) > 0 && text[0] == '#'
}

// nextLine returns the next line; nil if it was too long, and false at the end.
func (s *source) nextLine() ([]byte, bool) {
	text, err := s.in.ReadSlice('\n')
	s.number++
	tooLong := len(text) > maxLine
	for errors.Is(err, bufio.ErrBufferFull) {
		tooLong = true
		text, err = s.in.ReadSlice('\n')
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.Broken = err.Error()
	}
	s.ended = err != nil
	if tooLong {
		return nil, true
	}
	return bytes.TrimRight(text, "\r\n"), len(text) > 0
}

// fill reads lines into the window, until that is full or the log ends, and sorts them.
func (s *source) fill() {
	s.window.shift()
	for !s.ended && !s.window.isFull() {
		text, ok := s.nextLine()
		if ok {
			s.add(text)
		}
	}
	s.Late += s.window.sort(s.ended)
	if s.Whole {
		s.window.spread(s.turn, s.turns)
	}
	if n := s.window.usable; n > 0 {
		s.window.last = s.window.requests[n-1]
	}
}

// add adds a line to the window.
func (s *source) add(text []byte) {
	if text != nil && len(text) == 0 || s.isComment(text) {
		return
	}
	s.Lines++
	l := &s.line
	*l = line{}
	if s.format == nil || text == nil || !s.parse(text, l) {
		if s.Bad++; s.FirstBad == 0 {
			s.FirstBad = s.number
		}
		return
	}
	if l.timed && s.AtEnd {
		s.Timed++
		l.time = max(l.time-l.duration, minTime)
	}
	start := len(s.window.data)
	if s.Format == recordingFormat {
		s.window.data = append(s.window.data, text...)
	} else {
		s.window.data = s.wants.append(s.window.data, l)
	}
	s.window.add(l.time, start)
}

// A window holds the requests that are read ahead, so that a line may be behind others that came later, and so that the
// requests of a second are known together. When it is full, the earlier half is used, and the other half stays for more
// to be sorted in.
type window struct {
	room     int
	requests []request
	data     []byte
	spare    []byte
	next     int     // request to use
	usable   int     // how many are sorted
	last     request // before the next to be sorted
}

// A request is its times, as those of a Request, and the position of its values.
type request struct {
	time, spread int64
	start, end   uint32
}

func (r *request) second() int64 { return r.time / int64(time.Second) }

// A window with more requests divides a second, which is noticed only if it has so many: about a million, by default.
const (
	roomOfSecond    = 8    // requests, for each that it has room for
	bytesPerRequest = 1024 // likewise
)

// isFull reports whether half of the window can be used, and the second that ends there is complete.
func (w *window) isFull() bool {
	n := len(w.requests)
	return len(w.data) >= w.room*bytesPerRequest || n >= w.room*roomOfSecond ||
		n >= w.room && w.requests[n/2].second() != w.requests[n-1].second()
}

func (w *window) add(t int64, start int) {
	w.requests = append(w.requests, request{t, t, uint32(start), uint32(len(w.data))})
}

// shift drops what was used.
func (w *window) shift() {
	left := w.requests[w.next:]
	spare := w.spare[:0]
	for i := range left {
		r := &left[i]
		start := len(spare)
		spare = append(spare, w.data[r.start:r.end]...)
		r.start, r.end = uint32(start), uint32(len(spare))
	}
	w.data, w.spare = spare, w.data
	w.requests = append(w.requests[:0], left...)
	w.next = 0
}

// sort sorts the requests, and returns how many came later than the window reaches. They get the time of those before.
func (w *window) sort(all bool) (late int64) {
	byTime := func(a, b request) int { return cmp.Compare(a.time, b.time) }
	if !slices.IsSortedFunc(w.requests, byTime) { // as few logs are not
		slices.SortStableFunc(w.requests, byTime)
	}
	for i := range w.requests {
		r := &w.requests[i]
		if r.time >= w.last.time {
			break
		}
		late++
		r.time, r.spread = w.last.time, w.last.time
	}
	n := len(w.requests)
	for w.usable = (n + 1) / 2; w.usable < n; w.usable++ {
		if !all && w.requests[w.usable].second() != w.requests[w.usable-1].second() {
			break
		}
	}
	return late
}

// spread spreads the requests of each second evenly over it. A part of the time between two of them passes before the
// first, which is the log's turn, so that those of several logs do not come together.
func (w *window) spread(turn, turns int) {
	for left := w.requests[:w.usable]; len(left) > 0; {
		second := left[0].second()
		n := slices.IndexFunc(left, func(r request) bool { return r.second() != second })
		if n < 0 {
			n = len(left)
		}
		step := int64(time.Second) / int64(n)
		for i := range n {
			at := second*int64(time.Second) + int64(i)*step + step*int64(turn)/int64(turns)
			left[i].spread = max(at, w.last.spread) // after the rest of a second that was divided
		}
		left = left[n:]
	}
}

// head returns the next request; nil at the end of the log.
func (s *source) head() *request {
	for s.window.next >= s.window.usable {
		if s.ended && s.window.next >= len(s.window.requests) {
			return nil
		}
		s.fill()
	}
	return &s.window.requests[s.window.next]
}
