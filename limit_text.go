package penstock

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/spelling"
	"github.com/penstock-io/penstock/internal/timespan"
	"github.com/penstock-io/penstock/internal/words"
)

// maxLimitText is more than the length of any valid limit.
const maxLimitText = 512

// ParseLimit parses a limit from text such as
//
//	10/1s
//	30/1m burst=15
//	100/10s sliding-log
//	100/1d rolling-window bucket=1h
//	5/30s concurrent
//	5/day zone=Asia/Shanghai fixed-window
//	100/1m fixed-window align=clock offset=10s name=login
//
// It begins with the count, a slash and the period. These words may follow, in any
// order, each at most once:
//
//	sliding-log     the algorithm, by the name of its constant, here
//	                SlidingLog; default token-bucket
//	burst=N         of a bucket: the most at once; default the count
//	debt=N          the most that a charge takes beyond empty, 0 for none; not
//	                of a rolling-window, sliding-log or concurrent limit;
//	                default the capacity
//	buckets=N       of a rolling-window: the number of its parts; default 10
//	bucket=1h       the same by length: as many parts as needed, none longer
//	align=clock     of a fixed-window: where it begins, one of first (the
//	                default), clock, day, week, month, year
//	offset=10s      of an aligned fixed-window: how much later it begins
//	zone=UTC        of a fixed-window of a day, week, month or year: the IANA
//	                time zone whose calendar it follows
//	name=login      the name that identifies its state
//
// Durations are written as in Go (1h30m, 250ms), in days and weeks (1d, 2w), or
// spelled out (2days, 3months). The number of a single unit can be left out: 10/s,
// 1000/hour, 1/year. A month has 30 days and a year 365, except on a calendar. A
// value with spaces or special characters is quoted as in Go.
//
// The returned limit is valid and has its defaults filled in. The error is a
// [*FieldError] of kind [ErrBadLimit], whose field is "text" if the text itself
// cannot be parsed.
func ParseLimit(s string) (Limit, error) {
	ws, err := splitLimit(s)
	if err != nil {
		return Limit{}, err
	}
	p := limitParser{words: map[string]words.Word{}}
	if err := p.readRate(ws[0]); err != nil {
		return Limit{}, err
	}
	for _, w := range ws[1:] {
		if err := p.readWord(w); err != nil {
			return Limit{}, err
		}
	}
	return p.finish()
}

// String returns the limit as text for [ParseLimit]. Equivalent limits have equal
// texts, except that [Limit.Untrusted] is not part of it. The text of an invalid
// limit cannot be parsed.
func (l Limit) String() string {
	l = l.Normal()
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%s", l.Count, l.periodText())
	if l.Zone != "" {
		b.WriteString(" zone=" + words.Quote(l.Zone))
	}
	if l.Algorithm != TokenBucket {
		b.WriteString(" " + l.Algorithm.String())
	}
	if l.Burst != 0 && l.Burst != l.Count {
		fmt.Fprintf(&b, " burst=%d", l.Burst)
	}
	if l.Debt != 0 {
		fmt.Fprintf(&b, " debt=%d", max(l.Debt, 0)) // NoDebt is negative
	}
	if l.Buckets != 0 && l.Buckets != defaultBuckets {
		fmt.Fprintf(&b, " buckets=%d", l.Buckets)
	}
	if l.Align != AlignFirst && !l.isCalendar() {
		b.WriteString(" align=" + l.Align.String())
	}
	if l.Offset != 0 {
		b.WriteString(" offset=" + timespan.Text(l.Offset))
	}
	if l.Name != "" {
		b.WriteString(" name=" + words.Quote(l.Name))
	}
	return b.String()
}

// MarshalText returns the text of [Limit.String], or an error if the limit is
// invalid. With it, limits are strings in JSON, and work as flags.
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText parses like [ParseLimit]. The limit is unchanged on error.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := ParseLimit(string(text))
	if err == nil {
		*l = parsed
	}
	return err
}

var (
	algorithmWords = algorithmNames()
	alignWords     = []string{"first", "clock", "day", "week", "month", "year"}

	// limitFields maps the keys of the text to the fields that they set.
	limitFields = map[string]string{
		"burst": "Burst", "debt": "Debt", "buckets": "Buckets", "bucket": "Buckets", "align": "Align",
		"offset": "Offset", "zone": "Zone", "name": "Name",
	}
	limitKeys = []string{"burst=", "debt=", "buckets=", "bucket=", "align=", "offset=", "zone=", "name="}
)

func algorithmNames() (names []string) {
	for _, a := range algorithms {
		names = append(names, a.name)
	}
	return names
}

// String returns the algorithm's name in the text of a limit.
func (a Algorithm) String() string { return wordAt(algorithmWords, int(a), "algorithm") }

// String returns the alignment's name in the text of a limit.
func (a Align) String() string { return wordAt(alignWords, int(a), "align") }

func wordAt(words []string, i int, kind string) string {
	if i < len(words) {
		return words[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

// isCalendar reports whether the limit's zone and period imply its alignment.
func (l Limit) isCalendar() bool {
	return l.calendarPeriod() != 0 && l.Period == l.calendarPeriod()
}

func (l Limit) periodText() string {
	if l.isCalendar() {
		return l.Align.String()
	}
	return timespan.Text(l.Period)
}

// badWord returns an error that points at a word.
func badWord(w words.Word, field, format string, args ...any) *FieldError {
	return badLimit(field, "at column %d: %q: %s", w.Column, w.Text, fmt.Sprintf(format, args...))
}

// splitLimit returns the words of a text, at least one.
func splitLimit(s string) ([]words.Word, error) {
	if len(s) > maxLimitText {
		return nil, badLimit("text", "at column %d: %d bytes long: want at most %d", maxLimitText+1, len(s), maxLimitText)
	}
	ws, bad := words.Split(s)
	switch {
	case bad != nil:
		return nil, badWord(bad.Word, fieldOf(bad.Word), "%s", bad.Text)
	case len(ws) == 0:
		return nil, badLimit("text", "at column 1: empty: want a count and a period such as 10/1s")
	}
	return ws, nil
}

// fieldOf returns the field that a word sets, or "text" if it sets none.
func fieldOf(w words.Word) string { return cmp.Or(limitFields[w.Key], "text") }

// A limitParser holds the limit parsed so far, and the word that set each field.
type limitParser struct {
	limit Limit
	words map[string]words.Word // by field
}

// readRate parses the first word, the count and the period.
func (p *limitParser) readRate(w words.Word) error {
	count, period, ok := strings.Cut(w.Text, "/")
	if !ok {
		return badWord(w, "text", "want a count and a period first, such as 10/1s")
	}
	countWord := words.Word{Column: w.Column, Text: count}
	periodWord := words.Word{Column: w.Column + len(count) + 1, Text: period}
	p.words["Count"], p.words["Period"] = countWord, periodWord

	var err error
	if p.limit.Count, err = words.Number(count); err != nil {
		return badWord(countWord, "Count", "%v", err)
	}
	if p.limit.Period, ok = timespan.Parse(period); !ok {
		return badWord(periodWord, "Period", "%s", timespan.Suggest(period))
	}
	if p.limit.Period <= 0 {
		return badWord(periodWord, "Period", "must be more than zero")
	}
	return nil
}

// readWord parses any word but the first.
func (p *limitParser) readWord(w words.Word) error {
	field := fieldOf(w)
	switch known := field != "text"; {
	case known && !w.HasValue():
		return badWord(w, "text", "want a value, as in %s=…", w.Key)
	case known && w.Value == "":
		return badWord(w, field, "want a value, or leave the word out")
	case !known && w.HasValue():
		return badWord(w, "text", "unknown key; %s", spelling.Suggest(w.Key+"=", limitKeys))
	case !known:
		field = "Algorithm"
	}
	if earlier, ok := p.words[field]; ok {
		return badWord(w, field, "already set at column %d: %q", earlier.Column, earlier.Text)
	}
	p.words[field] = w
	return p.set(field, w)
}

// set sets the field of a word.
func (p *limitParser) set(field string, w words.Word) (err error) {
	switch field {
	case "Algorithm":
		return p.setAlgorithm(w)
	case "Align":
		return p.setAlign(w)
	case "Burst":
		p.limit.Burst, err = positiveNumber(w, math.MaxInt64)
	case "Debt":
		p.limit.Debt, err = debtNumber(w)
	case "Buckets":
		p.limit.Buckets, err = p.buckets(w)
	case "Offset":
		var ok bool
		if p.limit.Offset, ok = timespan.ParseOffset(w.Value); !ok {
			err = badWord(w, "Offset", "want a duration such as 4h or -30m")
		}
	case "Zone":
		p.limit.Zone = w.Value
	case "Name":
		p.limit.Name = w.Value
	}
	return err
}

func (p *limitParser) setAlgorithm(w words.Word) error {
	i := slices.Index(algorithmWords, w.Text)
	if i < 0 {
		return badWord(w, "Algorithm", "unknown word; %s", spelling.Suggest(w.Text, slices.Concat(algorithmWords, limitKeys)))
	}
	p.limit.Algorithm = Algorithm(i)
	return nil
}

func (p *limitParser) setAlign(w words.Word) error {
	i := slices.Index(alignWords, w.Value)
	if i < 0 {
		return badWord(w, "Align", "unknown alignment; %s", spelling.Suggest(w.Value, alignWords))
	}
	p.limit.Align = Align(i)
	return nil
}

// buckets parses buckets=20, or bucket=1h as a fraction of the period.
func (p *limitParser) buckets(w words.Word) (int, error) {
	if w.Key == "buckets" {
		n, err := positiveNumber(w, maxBuckets)
		return int(n), err
	}
	bucket, ok := timespan.Parse(w.Value)
	if !ok || bucket <= 0 {
		return 0, badWord(w, "Buckets", "want a duration such as 1h or 30s")
	}
	if bucket > p.limit.Period {
		return 0, badWord(w, "Buckets", "longer than the period of %s", timespan.Text(p.limit.Period))
	}
	n := (p.limit.Period-1)/bucket + 1
	if n > maxBuckets {
		return 0, badWord(w, "Buckets", "the period of %s has %d of these: want at most %d",
			timespan.Text(p.limit.Period), n, maxBuckets)
	}
	return int(n), nil
}

// finish checks the combination of words, and returns the limit.
func (p *limitParser) finish() (Limit, error) {
	for _, check := range [...]func() error{p.checkAlgorithmWords, p.alignToZone, p.checkOffset} {
		if err := check(); err != nil {
			return Limit{}, err
		}
	}
	var bad *FieldError
	if errors.As(p.limit.Validate(), &bad) {
		// No default is ever invalid, so there is a word for the field.
		return Limit{}, badLimit(bad.Field, "at column %d: %s", p.words[bad.Field].Column, bad.Problem)
	}
	return p.limit.Normal(), nil
}

// checkAlgorithmWords rejects words that the algorithm does not use. In a [Limit]
// such fields are ignored, but in text they are a mistake.
func (p *limitParser) checkAlgorithmWords() error {
	for _, c := range []struct {
		field   string
		belongs func(*Limit) bool
	}{
		{"Burst", (*Limit).isBucket},
		{"Debt", (*Limit).canOwe},
		{"Buckets", (*Limit).hasParts},
		{"Align", (*Limit).aligns},
		{"Offset", (*Limit).aligns},
		{"Zone", (*Limit).aligns},
	} {
		if w, ok := p.words[c.field]; ok && !c.belongs(&p.limit) {
			return badWord(w, c.field, "requires %s, not %s", algorithmsThat(c.belongs), p.limit.Algorithm)
		}
	}
	return nil
}

// algorithmsThat returns the names of the algorithms with a property, as in "a, b or c".
func algorithmsThat(have func(*Limit) bool) string {
	var names []string
	for _, a := range Algorithms() {
		if have(&Limit{Algorithm: a}) {
			names = append(names, a.String())
		}
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// alignToZone sets the alignment that a zone implies.
func (p *limitParser) alignToZone() error {
	zone, ok := p.words["Zone"]
	if !ok {
		return nil
	}
	align, aligned := p.words["Align"]
	if !aligned {
		p.limit.Align = calendarAlign(p.limit.Period)
	}
	switch {
	case p.limit.calendarPeriod() != 0:
		return nil
	case aligned:
		return badWord(zone, "Zone", "requires a calendar, which %s does not follow", align.Text)
	}
	return badWord(zone, "Zone", "requires a period of day, week, month or year, not %s", p.words["Period"].Text)
}

// checkOffset rejects an offset without an alignment.
func (p *limitParser) checkOffset() error {
	if w, ok := p.words["Offset"]; ok && p.limit.Align == AlignFirst {
		return badWord(w, "Offset", "requires align= or zone=: these windows begin at the first request")
	}
	return nil
}

// debtNumber parses the value of a word as a debt, where 0 is none.
func debtNumber(w words.Word) (int64, error) {
	n, err := words.Number(w.Value)
	switch {
	case err != nil:
		return 0, badWord(w, "Debt", "%v", err)
	case n < 0:
		return 0, badWord(w, "Debt", "must not be negative")
	case n == 0:
		return NoDebt, nil
	}
	return n, nil
}

// positiveNumber parses the value of a word as a number from 1 to most.
func positiveNumber(w words.Word, most int64) (int64, error) {
	n, err := words.Number(w.Value)
	if err != nil {
		return 0, badWord(w, fieldOf(w), "%v", err)
	}
	if n < 1 || n > most {
		return 0, badWord(w, fieldOf(w), "want a number from 1 to %d, or leave the word out", most)
	}
	return n, nil
}
