package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
)

// NewScript returns a script for [Store.Eval]. The name appears in error texts.
func NewScript(name, text string) *Script { return newScript(name, text) }

// evalTimeout bounds an Eval whose context has no earlier deadline. It is longer than
// Options.Timeout, because such scripts may carry much data, and no request waits for
// them.
const evalTimeout = 5 * time.Second

// Eval runs a script of the program's own on the key PREFIX:name and returns its reply,
// which must be an array of strings or integers, of at most 32 MiB, where each element counts for 64 bytes more. The daemon keeps its overrides with it,
// beside the state of the limits. Like a take, a call is repeated only if Redis certainly
// did not execute it. A store on a client of the program's own returns
// [errors.ErrUnsupported]. The user of Redis needs the commands of the script.
func (s *Store) Eval(ctx context.Context, script *Script, name string, args ...string) ([]string, error) {
	if _, ok := s.client.(*rueidisClient); !ok {
		return nil, fmt.Errorf("redisstore: %s: %w by this client", script.Name, errors.ErrUnsupported)
	}
	d := s.deadlineAfter(ctx, time.Now(), evalTimeout)
	defer d.stop()
	calls := []Call{{Script: script, Keys: []string{s.prefix + ":" + name}, Args: args, wantTexts: true}}
	s.roundTrip(d, calls)
	if err := calls[0].Err; err != nil {
		return nil, s.evalError(d, &calls[0])
	}
	return calls[0].texts, nil
}

// evalError returns the error of a call. Unlike that of a take, it is
// [penstock.ErrUnavailable] or [penstock.ErrBusy] only if Redis did not reply.
func (s *Store) evalError(d *deadline, c *Call) error {
	switch ended := d.callerErr(); {
	case ended != nil:
		return c.wrapError(endedError(ended, d.busy()))
	case isReply(c.Err) && !notExecuted(c.Err):
		if refused := refusalOf(c.Err, s.client.Sharded()); refused != nil { // not counted: no decision depends on it
			return c.wrapError(refused)
		}
		return c.wrapError(c.Err)
	}
	why := penstock.ErrUnavailable
	if errors.Is(c.Err, context.DeadlineExceeded) {
		why = whyEnded(d)
	}
	return c.wrapError(fmt.Errorf("%w: %w", why, c.Err))
}
