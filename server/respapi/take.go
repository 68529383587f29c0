package respapi

import (
	"errors"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/takecall"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// PENSTOCK.TAKE is all of penstock's take over RESP: any limit, and rules. take_parse.go
// reads its arguments, take_reply.go encodes decisions. A request with a limit joins the
// batch of its pipeline, as CL.THROTTLE does; requests by rules are decided one by one,
// since each may have several limits.

// take executes PENSTOCK.TAKE.
func (c *conn) take(args [][]byte) {
	if len(args) == 2 && strings.EqualFold(string(args[1]), "HELP") {
		c.flushBatch()
		c.out.arrayHeader(len(takeHelp))
		c.out.texts(takeHelp...)
		return
	}
	if err := c.decideTake(args[1:], strings.EqualFold(string(args[0]), settleCommand)); err != nil {
		c.flushBatch() // replies are in the order of commands
		c.logError(err)
		c.out.takeError(err)
	}
}

// settleCommand has the form of PENSTOCK.TAKE.
const settleCommand = "PENSTOCK.SETTLE"

// decideTake decides a PENSTOCK.TAKE or PENSTOCK.SETTLE, or adds it to the batch.
func (c *conn) decideTake(args [][]byte, settle bool) error {
	t, err := parseTake(args, min(c.server.engine.MaxDescriptors(), maxRequests))
	if err == nil && settle {
		t.Request.Settle, err = true, t.checkSettle()
	}
	if err != nil {
		return err
	}
	c.server.engine.MarkReleases(t.Domain, t.Descriptors)
	switch {
	case t.Refunds() && !c.mayRefund():
		err := permissionError("a refund or reset undoes a limit: " + c.permissionHint())
		c.server.options.Audit.RefuseAll(c.takeEntries(t), err.Error())
		return err
	case t.Refunds():
		return c.refundOrReset(t)
	case t.ByRules():
		c.flushBatch()
		_, err = c.takeByRules(t)
		return err
	}
	r, err := c.storeRequest(t)
	if err != nil {
		return err
	}
	if settle || c.server.transientKeys {
		c.flushBatch() // an unknown ID must not fail the others of a batch
		_, err = c.takeNow(&r)
		return err
	}
	c.addToBatch(&r, takeForm)
	return nil
}

// storeRequest returns the request for the store, of a command with key and limit. It is
// valid: an invalid request would fail the others of its batch.
func (c *conn) storeRequest(t *takeCall) (penstock.Request, error) {
	r, err := t.StoreRequest(c.server.engine, c.mayRefund)
	if err != nil {
		return r, err
	}
	if !c.mayRefund() && requestlimits.HasReservedName(r.Limit) {
		return r, permissionError("a limit of the name cl.throttle or override can undo one: " + c.permissionHint())
	}
	return r, r.Validate()
}

// takeNow decides a request at once.
func (c *conn) takeNow(r *penstock.Request) (reply takecall.Reply, err error) {
	d, err := c.server.engine.Store().Take(c.server.ctx, *r)
	c.server.engine.Denials.ForgetReturned(r)
	if err != nil {
		c.counters.Fail()
		return reply, err
	}
	c.count(&r.Limit, r.Key, r.Cost, &d)
	reply = takecall.UnderLimit(r, d)
	c.out.take(&reply)
	return reply, nil
}

// takeByRules decides descriptors by the rules of a domain, and returns the reply to each.
func (c *conn) takeByRules(t *takeCall) ([]takecall.Reply, error) {
	var result engine.Result
	if err := t.Decide(c.server.ctx, c.server.engine, t.Descriptors, &result); err != nil {
		return nil, err
	}
	c.server.options.Requests.DeniedByRules(t.Descriptors, &result)
	parts := t.UnderRules(&result, t.Descriptors)
	c.out.takeParts(!result.OverLimit, parts)
	return parts, nil
}

// A permissionError means that the connection lacks the rights of a refund.
type permissionError string

func (e permissionError) Error() string { return string(e) }

// takeError appends the reply to a PENSTOCK.TAKE that was not decided. Its code says what
// the client can do: correct the command (ERR), authenticate (NOPERM), take under another
// ID (UNKNOWNID), or choose whether to go on without a decision (UNAVAILABLE).
func (r *reply) takeError(err error) {
	var argument argumentError
	var permission permissionError
	var refused *requestlimits.Refusal
	var field *penstock.FieldError
	switch {
	case errors.As(err, &permission):
		r.error("NOPERM " + permission.Error())
	case errors.As(err, &refused):
		r.error("NOPERM " + refused.Error())
	case errors.As(err, &argument):
		r.error("ERR " + argument.Error())
	case errors.As(err, &field):
		r.error("ERR " + fieldText(field))
	case errors.Is(err, engine.ErrNoSettle), errors.Is(err, engine.ErrNoPermitID), errors.Is(err, engine.ErrNoAtMost):
		r.error("ERR " + errorText(err))
	case errors.Is(err, penstock.ErrUnknownID):
		r.error("UNKNOWNID nothing is remembered under this ID; nothing was charged")
	default:
		r.error("UNAVAILABLE " + errorText(err))
	}
}

// asWords renames fields in the problem of another.
var asWords = strings.NewReplacer("AtMost", "ATMOST", "Overdraw", "OVERDRAW", "MaxDelay", "MAXDELAY")

// fieldText returns the text of an error about a request's field, which the command names
// by a word.
func fieldText(e *penstock.FieldError) string {
	if errors.Is(e, penstock.ErrBadLimit) {
		return "LIMIT: " + e.Field + " " + e.Problem
	}
	return strings.ToUpper(e.Field) + " " + asWords.Replace(e.Problem)
}
