package simulator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/accesslog"
	"github.com/penstock-io/penstock/server/replay"
)

// The bounds of a simulation on a log. MaxLogTime holds for all lanes together.
const (
	MaxLogBytes  = 32 << 20 // as it is sent, compressed or not
	MaxLogTime   = 20 * time.Second
	MaxLogLimits = 6
	maxUnpacked  = 128 << 20 // bytes
	maxLogKeys   = 50_000
	logWindow    = 1 << 13 // requests that are sorted at a time
	topLogKeys   = 5
)

// ErrLogTime means that a log takes too long.
var ErrLogTime = fmt.Errorf("%w: the log takes longer than %v; send a part of it, or use penstock replay", ErrBadTraffic, MaxLogTime)

var errUnpacked = fmt.Errorf("%w: the log has more than %d MiB, unpacked; send a part of it, or use penstock replay", ErrBadTraffic, maxUnpacked>>20)

// A LogQuery says what to do with a log.
type LogQuery struct {
	// Limits to try. A single one is tried with every algorithm.
	Limits []string

	// By are the entries under which requests are counted, as in a rule of the domain: recordings have
	// these, and logs have values for entries such as remote_address, user, method and path.
	Domain string
	By     []rules.Entry
}

// A LogSimulation is a log under several limits.
type LogSimulation struct {
	Limit    string           `json:"limit"` // the first
	From     time.Time        `json:"from"`
	To       time.Time        `json:"to"`
	Requests int64            `json:"requests"`
	Column   float64          `json:"column_seconds"` // the length of a column of a timeline
	Log      accesslog.Report `json:"log"`
	Assumed  []string         `json:"assumed"`
	Lanes    []LogLane        `json:"lanes"`
}

// A LogLane is a log under one limit.
type LogLane struct {
	Algorithm  string          `json:"algorithm"`
	Limit      string          `json:"limit"`
	Written    bool            `json:"written"`
	Error      string          `json:"error,omitempty"` // why the algorithm cannot have the limit
	Requests   int64           `json:"requests"`        // that are counted under it
	Denied     replay.Denials  `json:"denied"`
	Keys       int64           `json:"keys"`
	DeniedKeys int64           `json:"denied_keys"`
	Top        []replay.Key    `json:"most_denied"`
	Timeline   []replay.Bucket `json:"timeline"`
}

// RunLog replays a log, or a recording, under limits. It decides as the server would, in virtual time.
func RunLog(ctx context.Context, log []byte, q LogQuery) (*LogSimulation, error) {
	lanes, err := q.lanes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, MaxLogTime)
	defer cancel()
	s := &LogSimulation{Limit: q.Limits[0], Lanes: lanes}
	for i := range lanes {
		if lanes[i].Error != "" {
			continue
		}
		if err := s.run(ctx, log, &q, &lanes[i]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// lanes returns a lane for each limit to try: for one with all algorithms, or for several as they are.
func (q *LogQuery) lanes() (lanes []LogLane, err error) {
	if n := len(q.Limits); n < 1 || n > MaxLogLimits {
		return nil, fmt.Errorf("%w: %d limits: want 1 to %d", ErrBadTraffic, n, MaxLogLimits)
	}
	for _, text := range q.Limits {
		l, err := parseLimit(text)
		if err != nil {
			return nil, err
		}
		if len(q.Limits) > 1 {
			lanes = append(lanes, newLogLane(l, true))
			continue
		}
		for other := range variants(l, false) {
			lanes = append(lanes, newLogLane(other, other.Algorithm == l.Algorithm))
		}
	}
	return lanes, nil
}

func newLogLane(l penstock.Limit, written bool) LogLane {
	lane := LogLane{
		Algorithm: l.Algorithm.String(), Limit: l.String(), Written: written,
		Top: []replay.Key{}, Timeline: []replay.Bucket{},
	}
	if err := l.Validate(); err != nil {
		lane.Error = err.Error()
	}
	return lane
}

func (s *LogSimulation) run(ctx context.Context, log []byte, q *LogQuery, lane *LogLane) error {
	set, err := q.rules(lane.Limit)
	if err != nil {
		return err
	}
	bounded := &boundedReader{ctx: ctx, left: maxUnpacked}
	report, err := replay.Run(ctx, []string{"-"}, replay.Options{
		Rules: set, Domain: q.Domain, MaxKeys: maxLogKeys, TopKeys: topLogKeys,
		Log: accesslog.Options{Input: bytes.NewReader(log), Unpacked: bounded.wrap, Window: logWindow},
	})
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return ErrLogTime
	case ctx.Err() != nil:
		return ctx.Err()
	case bounded.left < 0:
		return errUnpacked
	case errors.Is(err, replay.ErrNoRequests):
		return fmt.Errorf("%w: no line is one of a known access log or of a recording (%s)", ErrBadTraffic, strings.Join(accesslog.FormatNames(), ", "))
	case err != nil:
		return fmt.Errorf("%w: %w", ErrBadTraffic, err)
	}
	r := &report.Rules[0]
	if r.Requests == 0 {
		return fmt.Errorf("%w: none of its %d requests has the entries %s; of a recording, choose a rule of its daemon", ErrBadTraffic, report.Requests, q.text())
	}
	s.From, s.To, s.Requests, s.Column, s.Log = report.From, report.To, report.Requests, report.Column, report.Logs[0]
	lane.Requests, lane.Denied, lane.Keys, lane.DeniedKeys, lane.Timeline = r.Requests, r.Denied, r.Keys, r.DeniedKeys, r.Timeline
	lane.Top = append(lane.Top, r.Top...)
	if lane.Written && s.Assumed == nil {
		for _, note := range report.Assumed {
			s.Assumed = append(s.Assumed, strings.TrimPrefix(note, "-: "))
		}
	}
	return nil
}

func (q *LogQuery) text() string { return string(rules.AppendKey(nil, q.By)) }

// rules returns a rule with the limit and the entries. JSON is YAML.
func (q *LogQuery) rules(limit string) (*rules.Set, error) {
	node := map[string]any{"limit": limit}
	for i, e := range slices.Backward(q.By) {
		node["key"] = e.Key
		if e.Value != "" {
			node["value"] = e.Value
		}
		if i > 0 {
			node = map[string]any{"descriptors": []any{node}}
		}
	}
	text, err := json.Marshal(map[string]any{"domain": q.Domain, "descriptors": []any{node}})
	if err != nil {
		return nil, err
	}
	set, err := rules.Parse(rules.File{Name: "simulation", Text: text})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadTraffic, err)
	}
	return set, nil
}

// A boundedReader ends with its context, or after so many bytes: a small file can be a very large log, compressed.
type boundedReader struct {
	io.Reader
	ctx  context.Context
	left int // below zero if there was more
}

func (r *boundedReader) wrap(unpacked io.Reader) io.Reader {
	r.Reader = unpacked
	return r
}

func (r *boundedReader) Read(b []byte) (n int, err error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err = r.Reader.Read(b)
	if r.left -= n; r.left < 0 {
		return 0, errUnpacked
	}
	return n, err
}
