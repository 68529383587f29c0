package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/redisstore/internal/dialer"
)

// roundTrip makes calls, when there are slots for them, and repeats those that are
// safe to repeat until the deadline.
func (s *Store) roundTrip(d *deadline, calls []Call) {
	var buf [1]hold
	holds, err := s.hold(d, s.nodesOf(calls), buf[:0])
	if err != nil {
		for i := range calls {
			calls[i].Err = err
		}
		return
	}
	s.doWithRetries(d, holds, calls)
}

// The pause before a retry doubles from minRetryPause to maxRetryPause.
const (
	minRetryPause = time.Millisecond
	maxRetryPause = 16 * time.Millisecond
)

// doWithRetries makes calls for which slots are held, and frees these.
func (s *Store) doWithRetries(d *deadline, holds []hold, calls []Call) {
	s.probeAgain(d.began)
	if form := s.form.Load(); form != nil {
		for i := range calls {
			if !calls[i].tries {
				calls[i].setForm(*form)
			}
		}
	}
	if s.findsNodes() {
		d.sendTo(s.nodesOf(calls))
	}
	s.client.Do(d, calls)
	s.noteAnswers(d, holds, calls)
	for pause := minRetryPause; anyCall(calls, (*Call).retryable) && waitToRetry(d, calls, pause); pause = min(2*pause, maxRetryPause) {
		s.retry(d, holds, calls)
	}
	for _, h := range holds {
		s.letGo(d, h, calls)
	}
}

// letGo frees the slots of calls to a node that have ended, and those of abandoned calls if it has answered one.
func (s *Store) letGo(d *deadline, h hold, calls []Call) {
	answered := anyCall(calls, func(c *Call) bool { return c.answered() && s.nodeOf(c) == h.limiter.node })
	switch {
	case answered:
		h.limiter.release(h.slots)
		h.limiter.releaseAbandoned()
	case d.Err() != nil:
		h.limiter.abandon(h.slots)
	default:
		h.limiter.release(h.slots)
	}
}

// noteAnswers notes which nodes have just carried out a call. A rejection is not noted: a server that does nothing but
// reject is down.
func (s *Store) noteAnswers(d *deadline, holds []hold, calls []Call) {
	for i := range calls {
		if c := &calls[i]; c.answered() && (c.Err == nil || !notExecuted(c.Err)) {
			s.noteAnswer(d, holds, s.nodeOf(c))
			if !s.findsNodes() {
				return
			}
		}
	}
}

func (s *Store) noteAnswer(d *deadline, holds []hold, node int) {
	now, silent := s.answers.note(node, d.sentAt)
	for _, h := range holds {
		if h.limiter.node == node {
			h.limiter.window.note(d.sentAt, now, silent, h.slots)
		}
	}
}

// A nodeFinder is a client of a Cluster that numbers its nodes.
type nodeFinder interface {
	// nodeOfSlot returns the number of the node that owns a slot. It does not wait.
	nodeOfSlot(slot uint16) int
}

// findsNodes reports whether Redis has several nodes that the client tells apart.
func (s *Store) findsNodes() bool { return s.finder != nil && s.client.Sharded() }

// nodeOf returns the number of the node that a call is sent to. It is 0 for all if the client does not tell.
func (s *Store) nodeOf(c *Call) int {
	if len(c.Keys) == 0 {
		return 0
	}
	return s.nodeOfKey(c.Keys[0])
}

func (s *Store) nodeOfKey(key string) int {
	if !s.findsNodes() {
		return 0
	}
	return s.finder.nodeOfSlot(slotOf(key)) % maxNodes
}

// nodesOf returns the nodes that calls are sent to, as bits.
func (s *Store) nodesOf(calls []Call) (nodes uint64) {
	for i := range calls {
		nodes |= 1 << s.nodeOf(&calls[i])
	}
	return nodes
}

// anyCall reports whether a call has a property.
func anyCall(calls []Call, has func(*Call) bool) bool {
	for i := range calls {
		if has(&calls[i]) {
			return true
		}
	}
	return false
}

// answered reports whether Redis has replied.
func (c *Call) answered() bool { return c.Err == nil || isReply(c.Err) }

// retryable reports whether a call may be repeated: because it was not executed, or
// because its ID makes sure that it is charged once.
func (c *Call) retryable() bool {
	if c.Err == nil || errors.Is(c.Err, errClosed) {
		return false
	}
	return notExecuted(c.Err) || c.idempotent && !isReply(c.Err)
}

// rejectionCodes begin the errors with which Redis rejects a call that may succeed
// later. The call has changed nothing: BUSY and NOREPLICAS come before a script's
// first write.
var rejectionCodes = []string{
	"NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "NOREPLICAS",
}

// scriptPlace is where Redis before version 7 puts an error of a command in a script: behind the place
// in the script, twice if the command was rejected before it began. Some clients leave out ERR.
var scriptPlace = regexp.MustCompile(`^(?:ERR )?Error running script \(call to f_[0-9a-f]+\): @user_script:\d+: (@user_script: \d+: -)?`)

// reason returns the text of an error of Redis, without the place in the script.
func reason(err error) string {
	text := err.Error()
	return text[len(scriptPlace.FindString(text)):]
}

// rejectionCode returns the rejection code of an error, or "".
func rejectionCode(err error) string {
	word, _, _ := strings.Cut(reason(err), " ")
	for _, code := range rejectionCodes {
		if word == code {
			return code
		}
	}
	return ""
}

// notSent reports whether a call certainly did not reach a server.
func notSent(err error) bool {
	return errors.Is(err, dialer.ErrNotSent) || errors.Is(err, syscall.ECONNREFUSED)
}

// notExecuted reports whether a call certainly was not executed, and may succeed
// later. After any other error it may have been.
func notExecuted(err error) bool { return rejectionCode(err) != "" || notSent(err) }

// isReply reports whether an error is a reply of Redis, which begins with a word in
// capitals. EOF does too, but is an error of the connection.
func isReply(err error) bool {
	word, _, _ := strings.Cut(err.Error(), " ")
	return !errors.Is(err, io.EOF) && word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// waitToRetry pauses before a retry, and reports whether there is time for one. A
// script that the node does not have is sent to it at once.
func waitToRetry(ctx context.Context, calls []Call, pause time.Duration) bool {
	for i := range calls {
		if c := &calls[i]; c.retryable() && rejectionCode(c.Err) == "NOSCRIPT" && !c.Text {
			c.Text = true
			pause = 0
		}
	}
	if pause == 0 {
		return ctx.Err() == nil
	}
	return monotime.Sleep(ctx, pause) == nil
}

// retry repeats the calls that may be repeated.
func (s *Store) retry(d *deadline, holds []hold, calls []Call) {
	var again []Call
	var index []int
	for i := range calls {
		if calls[i].retryable() {
			again, index = append(again, calls[i]), append(index, i)
		}
	}
	for i := range again {
		again[i].lastErr, again[i].Err, again[i].Reply = again[i].Err, nil, again[i].Reply[:0]
	}
	d.sendAgain()
	s.client.Do(d, again)
	s.noteAnswers(d, holds, again)
	for i, at := range index {
		calls[at] = again[i]
	}
}

// callError returns the error of a call, with the operation, the node and the
// reason. If the caller's context has ended, that is the reason, and the error is
// not [penstock.ErrUnavailable].
func (s *Store) callError(d *deadline, c *Call) error { return s.errorFor(d.callerErr(), d, c) }

// errorFor is callError for a caller whose context has ended for a reason, or nil.
func (s *Store) errorFor(ended error, d *deadline, c *Call) error {
	err, after := c.Err, ""
	if c.lastErr != nil {
		after = ", after " + c.lastErr.Error()
	}
	switch {
	case ended != nil && isReply(err) && notExecuted(err):
		return c.wrapError(fmt.Errorf("%w, after %w", ended, err))
	case ended != nil && !isReply(err):
		return c.wrapError(fmt.Errorf("%w%s", endedError(ended, d.busy()), after))
	case errors.Is(err, context.DeadlineExceeded):
		due, _ := d.Deadline()
		err = fmt.Errorf("no answer within %v: %w%s", due.Sub(d.began).Round(time.Millisecond), err, after)
		if d.busy() {
			return c.wrapError(fmt.Errorf("%w: %w", penstock.ErrBusy, err))
		}
	case isForeign(err):
		err = &penstock.KeyError{Key: c.Keys[0], Err: fmt.Errorf("key %q holds a value that no limit wrote: %w", c.Keys, err)}
	case crossesSlots(err) && c.spansSlots():
		s.forgetSpread() // the caller sends them apart
		err = refusalOf(err, false)
	default:
		err = s.refused(err)
	}
	return c.wrapError(fmt.Errorf("%w: %w", penstock.ErrUnavailable, err))
}

// endedError returns the error of a call whose caller's context has ended, maybe while Redis answered others.
func endedError(ended error, busy bool) error {
	if busy {
		return fmt.Errorf("%w: %w", ended, penstock.ErrBusy)
	}
	return ended
}

// spansSlots reports whether keys of a call have different hash tags.
func (c *Call) spansSlots() bool {
	return slices.ContainsFunc(c.Keys, func(key string) bool { return hashTag(key) != hashTag(c.Keys[0]) })
}

// wrapError adds the operation and the node to an error.
func (c *Call) wrapError(err error) error {
	where := ""
	if c.Node != "" {
		where = " on " + c.Node
	}
	return fmt.Errorf("redisstore: %s%s: %w", c.Script.Name, where, err)
}

// isForeign reports whether a script found a value that no script writes: the
// script says so, or Redis could not add to the value.
func isForeign(err error) bool {
	text := strings.TrimPrefix(reason(err), "ERR ")
	return strings.HasPrefix(text, "FOREIGN") || strings.HasPrefix(text, "WRONGTYPE") ||
		strings.HasPrefix(text, "value is not an integer")
}
