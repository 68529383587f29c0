package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// A transcript is a file of scenarios. Its language is described in
// internal/algorithm/vectors.
type transcript struct {
	name      string
	lines     []string
	scenarios []scenario
}

// A scenario is a sequence of steps that starts with an empty store.
type scenario struct {
	title string
	steps []step
}

// isOnly reports whether all requests are of some algorithms.
func (s *scenario) isOnly(supported []penstock.Algorithm) bool {
	for i := range s.steps {
		for _, c := range s.steps[i].calls {
			if !slices.Contains(supported, c.request.Limit.Algorithm) {
				return false
			}
		}
	}
	return true
}

// A step is the requests that are sent at one time, or one request that is repeated.
type step struct {
	at    time.Time
	how   how
	calls []call
	times int
	every time.Duration // between repetitions
}

// how is how the calls of a step are sent.
type how string

const (
	single how = ""
	each   how = "each"
	all    how = "all"
)

// A call is one request and, in a transcript, the expected result.
type call struct {
	line    int // in the transcript, from 0
	request penstock.Request
	label   string // of the request's limit
	want    result
	noWant  bool // whether the transcript has no result
}

// parseTranscript reads a transcript. Errors name the file and the line.
func parseTranscript(name, text string) (*transcript, error) {
	p := parser{transcript: &transcript{name: name, lines: strings.Split(text, "\n")}}
	for i, line := range p.transcript.lines {
		p.line = i
		if err := p.parseLine(line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
	}
	return p.transcript, p.finish()
}

// A parser reads a transcript line by line.
type parser struct {
	transcript   *transcript
	line         int
	defaultStart time.Time // of scenarios without a start of their own
	start        time.Time
	now          time.Time // of the last request
	limits       map[string]penstock.Limit
}

func (p *parser) parseLine(line string) error {
	trimmed := strings.TrimSpace(line)
	word, rest, _ := strings.Cut(trimmed, " ")
	rest = strings.TrimSpace(rest)
	switch {
	case trimmed == "" || trimmed[0] == '#':
		return nil
	case line[0] == ' ' || line[0] == '\t':
		return p.parseIndented(trimmed)
	case word == "==":
		return p.beginScenario(rest)
	case word == "start":
		return p.setStart(rest)
	case p.scenario() == nil:
		return fmt.Errorf("want \"== TITLE\" before the first %q", word)
	case word == "limit":
		return p.setLimit(rest)
	case word == "at":
		return p.parseStep(rest, false)
	case word == "back":
		rest, ok := strings.CutPrefix(rest, "to ")
		if !ok {
			return fmt.Errorf("want \"back to TIME\"")
		}
		return p.parseStep(rest, true)
	}
	return fmt.Errorf("want ==, start, limit, at or back to, got %q", word)
}

// scenario returns the scenario that is being read, or nil before the first.
func (p *parser) scenario() *scenario {
	n := len(p.transcript.scenarios)
	if n == 0 {
		return nil
	}
	return &p.transcript.scenarios[n-1]
}

// lastStep returns the step that was read last, or nil.
func (p *parser) lastStep() *step {
	s := p.scenario()
	if s == nil || len(s.steps) == 0 {
		return nil
	}
	return &s.steps[len(s.steps)-1]
}

func (p *parser) beginScenario(title string) error {
	if err := p.endScenario(); err != nil {
		return err
	}
	if title == "" {
		return fmt.Errorf("want a title after ==")
	}
	p.transcript.scenarios = append(p.transcript.scenarios, scenario{title: title})
	p.start, p.now = p.defaultStart, time.Time{}
	p.limits = map[string]penstock.Limit{}
	return nil
}

// endScenario returns an error if the scenario has no steps.
func (p *parser) endScenario() error {
	if s := p.scenario(); s != nil && len(s.steps) == 0 {
		return fmt.Errorf("no steps in the scenario %q", s.title)
	}
	return p.endStep()
}

// endStep returns an error if the step has no requests.
func (p *parser) endStep() error {
	if s := p.lastStep(); s != nil && len(s.calls) == 0 {
		return fmt.Errorf("want indented requests below %q", s.how)
	}
	return nil
}

func (p *parser) finish() error {
	err := p.endScenario()
	if err == nil && p.scenario() == nil {
		err = fmt.Errorf("no scenarios")
	}
	if err != nil {
		return fmt.Errorf("%s: at the end: %w", p.transcript.name, err)
	}
	return nil
}

func (p *parser) setStart(text string) error {
	start, err := parseTimestamp(text)
	if err != nil {
		return err
	}
	p.start = start
	if p.scenario() == nil {
		p.defaultStart = start
	}
	return nil
}

func (p *parser) setLimit(text string) error {
	label := ""
	if before, after, ok := strings.Cut(text, ": "); ok && !strings.ContainsAny(before, " /") {
		label, text = before, after
	}
	limit, err := penstock.ParseLimit(text)
	if err == nil {
		p.limits[label] = limit
	}
	return err
}

// parseStep reads what follows "at" or "back to".
func (p *parser) parseStep(text string, back bool) error {
	when, rest, _ := strings.Cut(text, " ")
	at, err := p.parseTime(when)
	if err != nil {
		return err
	}
	if at.Before(p.now) != back {
		return fmt.Errorf("%s: want \"at\" for a time not before the last one, and \"back to\" for one before it", when)
	}
	if err := p.endStep(); err != nil {
		return err
	}
	s := step{at: at, times: 1}
	switch how := how(strings.TrimSpace(rest)); how {
	case all, each:
		s.how = how
	default:
		c, err := p.parseCall(rest, &s)
		if err != nil {
			return err
		}
		s.calls = []call{c}
	}
	p.now = s.end()
	p.scenario().steps = append(p.scenario().steps, s)
	return nil
}

// parseIndented reads an indented line.
func (p *parser) parseIndented(text string) error {
	s := p.lastStep()
	if s == nil || s.how == single {
		return fmt.Errorf("indented, but not below \"all\" or \"each\"")
	}
	c, err := p.parseCall(text, s)
	if err == nil {
		s.calls = append(s.calls, c)
	}
	return err
}

// parseCall reads a request and its result.
func (p *parser) parseCall(text string, s *step) (call, error) {
	c := call{line: p.line}
	requestText, want, hasResult := strings.Cut(text, "=>")
	if err := p.parseRequest(&c, s, requestText); err != nil {
		return c, err
	}
	c.noWant = !hasResult || strings.TrimSpace(want) == ""
	if c.noWant {
		return c, nil
	}
	var err error
	c.want, err = parseResult(strings.TrimSpace(want), s.times)
	return c, err
}

// parseTime reads a duration since the start, or a timestamp.
func (p *parser) parseTime(text string) (time.Time, error) {
	if strings.Contains(text, "T") {
		return parseTimestamp(text)
	}
	if p.start.IsZero() {
		return time.Time{}, fmt.Errorf("want \"start TIME\" before the first duration")
	}
	d, err := parseDuration(text)
	return p.start.Add(d), err
}

func parseTimestamp(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("want a time such as 2026-03-02T09:00:00Z, got %q", text)
	}
	if t.UnixNano()%int64(tick) != 0 {
		return t, fmt.Errorf("want whole milliseconds, got %q", text)
	}
	return t.UTC(), nil
}

// end returns the time of the step's last request.
func (s *step) end() time.Time {
	return s.at.Add(time.Duration(s.times-1) * s.every)
}
