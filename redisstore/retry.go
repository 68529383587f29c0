package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-io/penstock"
)

// refusals are the words with which Redis says that it has done nothing, and
// that asking again may help.
var refusals = []string{"NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN"}

// refused returns such a word, or nothing. After any other error it is not known
// whether the call was carried out.
func refused(err error) string {
	word, _, _ := strings.Cut(err.Error(), " ")
	for _, w := range refusals {
		if word == w {
			return w
		}
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errResting) {
		return "refused"
	}
	return ""
}

// The pause before a call is repeated doubles from one to the other.
const (
	firstPause = time.Millisecond
	lastPause  = 16 * time.Millisecond
)

// travel makes calls, and repeats those that may be, until the store's deadline.
func (s *Store) travel(ctx context.Context, calls []Call) {
	d := deadlineAfter(ctx, s.timeout)
	defer d.stop()
	place, err := s.gate.enter(d)
	if err != nil {
		for i := range calls {
			calls[i].Err = fmt.Errorf("%w: %w", errCrowded, err)
		}
		return
	}
	s.client.Do(d, calls)
	for pause := firstPause; anyAgain(calls) && s.wait(d, calls, pause); pause = min(2*pause, lastPause) {
		s.repeat(d, calls)
	}
	switch {
	case anyAnswered(calls):
		s.gate.leave(place)
		s.gate.reopen()
	case d.Err() != nil:
		s.gate.abandon(place)
	default:
		s.gate.leave(place)
	}
}

// anyAnswered reports whether Redis has said anything.
func anyAnswered(calls []Call) bool {
	for i := range calls {
		if calls[i].Err == nil || isReply(calls[i].Err) {
			return true
		}
	}
	return false
}

var errCrowded = errors.New("as many calls under way as there may be")

// anyAgain reports whether a call may be repeated.
func anyAgain(calls []Call) bool {
	for i := range calls {
		if calls[i].again() {
			return true
		}
	}
	return false
}

// again reports whether a call may be repeated: because it was not carried out,
// or because its ID makes sure that it is charged once.
func (c *Call) again() bool {
	return c.Err != nil && (refused(c.Err) != "" || c.safe && !isReply(c.Err))
}

// isReply reports whether an error is Redis's own answer; those begin with a
// word in capitals. EOF is one too, but not Redis's.
func isReply(err error) bool {
	word, _, _ := strings.Cut(err.Error(), " ")
	return !errors.Is(err, io.EOF) && word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// wait pauses before calls are repeated. A script that the node does not know is
// sent to it at once.
func (s *Store) wait(ctx context.Context, calls []Call, pause time.Duration) bool {
	for i := range calls {
		if c := &calls[i]; c.again() && refused(c.Err) == "NOSCRIPT" && !c.Text {
			c.Text = true
			pause = 0
		}
	}
	if pause == 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// repeat makes those calls again that may be.
func (s *Store) repeat(ctx context.Context, calls []Call) {
	var some []Call
	var places []int
	for i := range calls {
		if calls[i].again() {
			some, places = append(some, calls[i]), append(places, i)
		}
	}
	for i := range some {
		some[i].Err, some[i].Reply = nil, some[i].Reply[:0]
	}
	s.client.Do(ctx, some)
	for i, place := range places {
		calls[place] = some[i]
	}
}

// callError says which operation failed, where, and why.
func (s *Store) callError(ctx context.Context, c *Call) error {
	where := ""
	if c.Node != "" {
		where = " on " + c.Node
	}
	text := c.Err.Error()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("redisstore: %s%s: %w", c.Script.Name, where, ctx.Err())
	case errors.Is(c.Err, context.DeadlineExceeded):
		return fmt.Errorf("redisstore: %s%s: %w: no answer within %v: %w",
			c.Script.Name, where, penstock.ErrUnavailable, s.timeout, c.Err)
	case strings.HasPrefix(text, "FOREIGN"), strings.HasPrefix(text, "WRONGTYPE"):
		return fmt.Errorf("redisstore: %s%s: %w: key %q holds what no limit wrote: %w",
			c.Script.Name, where, penstock.ErrUnavailable, c.Keys, c.Err)
	}
	return fmt.Errorf("redisstore: %s%s: %w: %w", c.Script.Name, where, penstock.ErrUnavailable, c.Err)
}
