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

// rejectionCodes are the words with which Redis says that it has done nothing, and
// that asking again may help. BUSY and NOREPLICAS come before a script's first
// write, and a script that was refused that has written nothing.
var rejectionCodes = []string{
	"NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "NOREPLICAS",
}

// errNotSent means that a call never left this process.
var errNotSent = errors.New("not sent")

// rejectionCode returns such a word, or nothing. After any other error it is not known
// whether the call was carried out.
func rejectionCode(err error) string {
	word, _, _ := strings.Cut(err.Error(), " ")
	for _, w := range rejectionCodes {
		if word == w {
			return w
		}
	}
	if errors.Is(err, errNotSent) || errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	return ""
}

// The pause before a call is repeated doubles from one to the other.
const (
	minRetryPause = time.Millisecond
	maxRetryPause = 16 * time.Millisecond
)

// roundTrip makes calls, and repeats those that may be, until the deadline.
func (s *Store) roundTrip(d *deadline, calls []Call) {
	place, err := s.acquire(d)
	if err != nil {
		for i := range calls {
			calls[i].Err = err
		}
		return
	}
	s.attempt(d, place, calls)
}

// attempt makes calls of those who have been let in, and lets others in after them.
func (s *Store) attempt(d *deadline, place bool, calls []Call) {
	s.client.Do(d, calls)
	for pause := minRetryPause; anyRetryable(calls) && s.pause(d, calls, pause); pause = min(2*pause, maxRetryPause) {
		s.retry(d, calls)
	}
	switch {
	case anyAnswered(calls):
		s.inflight.release(place)
		s.inflight.releaseAbandoned()
	case d.Err() != nil:
		s.inflight.abandon(place)
	default:
		s.inflight.release(place)
	}
}

// acquire waits for a place among the trips under way. Who comes too late is not
// let in: a caller who has gone away must not be charged.
func (s *Store) acquire(d *deadline) (place bool, err error) {
	if err = d.Context.Err(); err != nil {
		return false, err
	}
	if place, err = s.inflight.acquire(d); err != nil {
		err = fmt.Errorf("%w: %w", errTooManyCalls, err)
	}
	return place, err
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

var errTooManyCalls = errors.New("as many calls under way as there may be")

// anyRetryable reports whether a call may be repeated.
func anyRetryable(calls []Call) bool {
	for i := range calls {
		if calls[i].retryable() {
			return true
		}
	}
	return false
}

// retryable reports whether a call may be repeated: because it was not carried out,
// or because its ID makes sure that it is charged once.
func (c *Call) retryable() bool {
	if c.Err == nil || errors.Is(c.Err, errClosed) {
		return false
	}
	return rejectionCode(c.Err) != "" || c.idempotent && !isReply(c.Err)
}

// isReply reports whether an error is Redis's own answer; those begin with a
// word in capitals. EOF is one too, but not Redis's.
func isReply(err error) bool {
	word, _, _ := strings.Cut(err.Error(), " ")
	return !errors.Is(err, io.EOF) && word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// pause pauses before calls are repeated. A script that the node does not know is
// sent to it at once.
func (s *Store) pause(ctx context.Context, calls []Call, pause time.Duration) bool {
	for i := range calls {
		if c := &calls[i]; c.retryable() && rejectionCode(c.Err) == "NOSCRIPT" && !c.Text {
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

// retry makes those calls again that may be.
func (s *Store) retry(d *deadline, calls []Call) {
	var some []Call
	var places []int
	for i := range calls {
		if calls[i].retryable() {
			some, places = append(some, calls[i]), append(places, i)
		}
	}
	for i := range some {
		some[i].lastErr, some[i].Err, some[i].Reply = some[i].Err, nil, some[i].Reply[:0]
	}
	d.sentAt = time.Now()
	s.client.Do(d, some)
	for i, place := range places {
		calls[place] = some[i]
	}
}

// callError says which operation failed, where, and why. Why the caller has gone
// away is the caller's to know, and no fault of Redis.
func (s *Store) callError(d *deadline, c *Call) error {
	err, before := c.Err, ""
	if c.lastErr != nil {
		before = ", after " + c.lastErr.Error()
	}
	switch gone := d.Context.Err(); {
	case gone != nil && isReply(err) && rejectionCode(err) != "":
		return c.wrapError(fmt.Errorf("%w, after %w", gone, err))
	case gone != nil && !isReply(err):
		return c.wrapError(fmt.Errorf("%w%s", gone, before))
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v: %w%s", s.timeout, err, before)
	case isForeign(err):
		err = &penstock.KeyError{Key: c.Keys[0], Err: fmt.Errorf("key %q holds a value that no limit wrote: %w", c.Keys, err)}
	}
	return c.wrapError(fmt.Errorf("%w: %w", penstock.ErrUnavailable, err))
}

// wrapError says which operation it was, and where.
func (c *Call) wrapError(err error) error {
	where := ""
	if c.Node != "" {
		where = " on " + c.Node
	}
	return fmt.Errorf("redisstore: %s%s: %w", c.Script.Name, where, err)
}

// isForeign reports whether a script has found something that is not a state: by
// itself, or because Redis cannot add to it.
func isForeign(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "FOREIGN") || strings.HasPrefix(text, "WRONGTYPE") ||
		strings.HasPrefix(text, "ERR value is not an integer")
}
