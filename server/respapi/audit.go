package respapi

import (
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// entry returns an entry of the audit log for a command.
func (c *conn) entry(name []byte) audit.Entry {
	return audit.Entry{API: "resp", Verb: strings.ToUpper(string(name)), Actor: auth.ConnActor(c.session.identity, c.net)}
}

// takeEntries returns an entry for each refund and reset of a PENSTOCK.TAKE.
func (c *conn) takeEntries(t *takeCall) []audit.Entry {
	return t.AuditEntries(c.entry([]byte("PENSTOCK.TAKE")))
}

// refundOrReset executes a PENSTOCK.TAKE that undoes a limit, with a record in the audit
// log. It does not wait for the rest of its pipeline: the batch has no record.
func (c *conn) refundOrReset(t *takeCall) (err error) {
	c.flushBatch() // replies are in the order of commands
	var r penstock.Request
	if !t.ByRules() {
		if r, err = c.storeRequest(t); err != nil {
			return err
		}
	}
	return c.server.options.Audit.Record(c.takeEntries(t), func(ps []*audit.Pending) (err error) {
		var reply takecall.Reply
		if t.ByRules() {
			reply.Parts, err = c.takeByRules(t)
		} else {
			reply, err = c.takeNow(&r)
		}
		if err == nil {
			t.RecordRefunds(ps, &reply)
		}
		return err
	})
}

// resetKeys resets keys of CL.THROTTLE, with a record in the audit log for each.
func (c *conn) resetKeys(name []byte, keys [][]byte) (after []penstock.Decision, err error) {
	before, err := c.takeKeys(keys, 0)
	if err != nil {
		return nil, err
	}
	entries := c.resetEntries(name, keys)
	for i := range entries {
		entries[i].Before = c.keyState(before, i)
	}
	err = c.server.options.Audit.Record(entries, func(ps []*audit.Pending) error {
		if after, err = c.takeKeys(keys, penstock.Reset); err != nil {
			return err
		}
		for i, p := range ps {
			p.After = c.keyState(after, i)
		}
		return nil
	})
	return after, err
}

// resetEntries returns an entry for each key of a DEL.
func (c *conn) resetEntries(name []byte, keys [][]byte) []audit.Entry {
	entries := make([]audit.Entry, len(keys))
	for i, key := range keys {
		entries[i] = c.entry(name).OfRequest(shortName, string(key), penstock.Reset)
	}
	return entries
}

// keyState returns the state of the key at an index, of the decisions of takeKeys. How much
// remains depends on the limit of the next CL.THROTTLE, so the time is all there is.
func (c *conn) keyState(ds []penstock.Decision, index int) *audit.State {
	names := len(c.server.keyLimiters)
	longest := 0.
	for _, d := range ds[index*names : (index+1)*names] {
		longest = max(longest, d.ResetAfter.Seconds())
	}
	return &audit.State{ResetAfter: &longest}
}
