// Package audit records every action that undoes a limit: the caller that asked for it, by which
// API, on what, why, and how it ended. Every API that has such actions uses one [Log].
//
// An action is two lines: [Log.Record] writes one before it and one after it. So no action is carried out that is not on record. A
// refused one is one line.
package audit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/lograte"
)

// ErrUnwritable means that the log could not be written, so that the action must not be
// carried out.
var ErrUnwritable = errors.New("the audit log cannot be written")

// Options configure a [Log].
type Options struct {
	// Out receives the lines. Required.
	Out io.Writer

	// Timeout bounds how long an action waits for the log: one that is not read, such as
	// a full pipe, must not hold callers for ever. Default: four seconds.
	Timeout time.Duration

	// Node names this daemon among others. Optional.
	Node string

	// Log receives errors of Out, at most one a second. Default: discarded.
	Log *slog.Logger

	// OnEnd is called for each action that ended, also if it is not recorded. It is
	// called concurrently, and must not block. Optional.
	OnEnd func(action string, result Result)

	// OnError is called for each line that could not be written. Optional.
	OnError func()
}

// A Log is safe for concurrent use. A nil Log records nothing, and lets every action pass.
type Log struct {
	options  Options
	writing  chan struct{} // holds a token while a line is written
	torn     bool          // the last line is incomplete; needs the token
	problems *lograte.Sampler

	start     string // begins the IDs of this process
	sequence  atomic.Int64
	anonymous *lograte.Sampler

	mu     sync.Mutex
	recent []Entry // oldest first
}

const (
	defaultTimeout = 4 * time.Second // shorter than HTTP connections wait for a response

	maxRecent = 200

	// maxRecentRefusals leaves room for actions that were carried out, however many are
	// refused.
	maxRecentRefusals = 100
)

// anonymousRefusals limits the recorded refusals of callers that are not identified: any
// remote caller can cause any number of them.
var anonymousRefusals = penstock.PerSecond(10).WithBurst(50)

// New returns a log.
func New(o Options) (*Log, error) {
	if o.Out == nil {
		return nil, errors.New("audit: no output")
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	if o.OnEnd == nil {
		o.OnEnd = func(string, Result) {}
	}
	if o.OnError == nil {
		o.OnError = func() {}
	}
	anonymous, err := lograte.NewSampler(anonymousRefusals)
	return &Log{
		options: o, writing: make(chan struct{}, 1), problems: lograte.PerSecond(), anonymous: anonymous,
		start: strconv.FormatInt(time.Now().UnixMilli(), 36),
	}, err
}

// A Pending is an action that has begun. Its caller completes the Entry, and calls Done
// or Fail once.
type Pending struct {
	Entry

	log *Log
}

// Record carries out actions by one function, with a record of each. If it returns an error, the
// actions have failed. Nothing is carried out if the error is [ErrUnwritable].
func (l *Log) Record(entries []Entry, act func([]*Pending) error) error {
	ps, err := l.BeginAll(entries)
	if err != nil {
		return err
	}
	if err := act(ps); err != nil {
		failAll(ps, err)
		return err
	}
	for _, p := range ps {
		p.Done()
	}
	return nil
}

// BeginAll records that the actions of one request are about to be carried out. If it returns an
// error, which is [ErrUnwritable], they must not be.
func (l *Log) BeginAll(entries []Entry) ([]*Pending, error) {
	all := make([]*Pending, len(entries))
	var lines []byte
	for i, e := range entries {
		all[i] = &Pending{Entry: e, log: l}
		if l == nil {
			continue
		}
		l.stamp(&all[i].Entry, Started)
		started := all[i].bounded()
		lines = append(lines, started.line()...)
	}
	if l == nil || len(lines) == 0 {
		return all, nil
	}
	if err := l.write(lines); err != nil {
		for _, p := range all {
			p.Detail = err.Error()
			l.keep(p.finish(Failed))
		}
		return nil, err
	}
	return all, nil
}

// Done records that the action was carried out.
func (p *Pending) Done() { p.end(Done) }

// Fail records that the action failed, or that it is not known whether it did: a store that
// gives no answer, or that a caller does not wait for, may carry out what it has received.
func (p *Pending) Fail(err error) {
	p.Detail = err.Error()
	if errors.Is(err, penstock.ErrUnavailable) || errors.Is(err, penstock.ErrBusy) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		p.end(Unknown)
		return
	}
	p.end(Failed)
}

func (p *Pending) end(result Result) {
	if p == nil || p.log == nil {
		return
	}
	p.log.record(p.finish(result))
}

// finish returns the final entry.
func (p *Pending) finish(result Result) Entry {
	p.Time, p.Result = time.Now(), result
	return p.bounded()
}

// Refuse records that an action is refused, for the reason in detail. Of callers that are
// not identified it records a sample.
func (l *Log) Refuse(e Entry, detail string) {
	if l == nil {
		return
	}
	if e.Actor.Via == "" {
		skipped, ok := l.anonymous.Allow()
		if !ok {
			l.options.OnEnd(e.Action, Refused)
			return
		}
		e.NotRecorded = skipped
	}
	e.Detail = detail
	l.stamp(&e, Refused)
	l.record(e.bounded())
}

// stamp fills in the fields that are the log's.
func (l *Log) stamp(e *Entry, result Result) {
	e.ID = l.start + "-" + strconv.FormatInt(l.sequence.Add(1), 10)
	e.Time, e.Node, e.Result = time.Now(), l.options.Node, result
}

// record writes an entry that is final, and keeps it among the recent ones. If it cannot
// be written, the first line of its action is all that the log has.
func (l *Log) record(e Entry) {
	l.keep(e)
	_ = l.write(e.line()) // it has logged the error
}

// keep counts an entry and adds it to the recent ones, in place of the oldest.
func (l *Log) keep(e Entry) {
	l.options.OnEnd(e.Action, e.Result)
	l.mu.Lock()
	defer l.mu.Unlock()
	refusals := 0
	for i := range l.recent {
		if l.recent[i].Result == Refused {
			refusals++
		}
	}
	oldest := -1
	switch {
	case e.Result == Refused && refusals == maxRecentRefusals:
		oldest = slices.IndexFunc(l.recent, func(e Entry) bool { return e.Result == Refused })
	case len(l.recent) == maxRecent:
		oldest = 0
	}
	if oldest >= 0 {
		l.recent = slices.Delete(l.recent, oldest, oldest+1)
	}
	l.recent = append(l.recent, e)
}

// Recent returns the last actions that ended, the newest first: at most 200, of which at
// most 100 are refusals.
func (l *Log) Recent() []Entry {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.recent)
	slices.Reverse(all)
	return all
}

// write writes whole lines, or returns ErrUnwritable within Options.Timeout.
func (l *Log) write(lines []byte) error {
	timeout := time.NewTimer(l.options.Timeout)
	defer timeout.Stop()
	written := make(chan error, 1)
	select {
	case l.writing <- struct{}{}:
		go func() {
			err := l.writeLines(lines)
			<-l.writing
			written <- err
		}()
	case <-timeout.C:
		return l.unwritable(l.blocked())
	}
	select {
	case err := <-written:
		return l.unwritable(err)
	case <-timeout.C:
	}
	select {
	case err := <-written: // in time: the caller stood still
		return l.unwritable(err)
	default:
		return l.unwritable(l.blocked())
	}
}

func (l *Log) blocked() error { return fmt.Errorf("not written within %v", l.options.Timeout) }

// writeLines writes lines. After a line that was cut off, as on a full disk, it begins a
// new one.
func (l *Log) writeLines(lines []byte) error {
	if l.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	n, err := l.options.Out.Write(lines)
	if n > 0 {
		l.torn = !bytes.HasSuffix(lines[:n], []byte{'\n'})
	}
	return err
}

// unwritable logs an error of the output, and returns it as ErrUnwritable.
func (l *Log) unwritable(err error) error {
	if err == nil {
		return nil
	}
	l.options.OnError()
	if skipped, ok := l.problems.Allow(); ok {
		l.options.Log.Error("audit log cannot be written, actions are refused", "err", err, "not_logged", skipped)
	}
	return fmt.Errorf("%w: %w", ErrUnwritable, err)
}
