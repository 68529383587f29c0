package respapi

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// newRemoteClient returns a connection that may not refund.
func newRemoteClient(s *Server) *conn {
	c := newFakeClient(s)
	c.session.identity.MayRefund = false
	return c
}

// CL.THROTTLE from another machine is refused if its limit is over a ceiling: a bucket's
// refill time counts, since its debt lives for that long.
func TestThrottleRefusesLimitsOverCeilings(t *testing.T) {
	s := must(New(engine.New(newFakeClock().memory(), nil), nil))
	remote, local := newRemoteClient(s), newFakeClient(s)
	for _, words := range []string{
		"CL.THROTTLE a 0 1 31622400", "CL.THROTTLE b 3000000 1 1", "CL.THROTTLE c 100 1 86400 50",
	} {
		got := remote.do(t, strings.Fields(words)...)
		if !strings.Contains(got, "744h0m0s (--request-limits-max-period)") || !strings.Contains(got, "exempt are callers with the token") {
			t.Errorf("%s: got %s, want an error about --request-limits-max-period", words, got)
		}
		if got := local.do(t, strings.Fields(words)...); !strings.HasPrefix(got, "*5 :0 ") {
			t.Errorf("%s from this machine: got %q, want it allowed: the refusal must not charge", words, got)
		}
	}
	if got := remote.do(t, "PENSTOCK.TAKE", "KEY", "k", "LIMIT", "1/366d"); !strings.HasPrefix(got, "-NOPERM ") || !strings.Contains(got, "--request-limits-max-period") {
		t.Errorf("PENSTOCK.TAKE: got %s, want NOPERM about --request-limits-max-period", got)
	}
	if got := remote.do(t, "CL.THROTTLE", "r", "30", "1", "86400"); strings.Contains(got, "error") {
		t.Errorf("a refill of 31 days: got %s, want a decision", got)
	}
	if n := s.engine.RequestLimits().Refused()[requestlimits.ReasonPeriod]; n != 4 {
		t.Errorf("counted %d refusals, want 4", n)
	}
}

func TestThrottleRefusesAllLimitsByMode(t *testing.T) {
	for mode, mayLocal := range map[requestlimits.Mode]bool{requestlimits.Local: true, requestlimits.Off: false} {
		e := engine.New(newFakeClock().memory(), &engine.Options{RequestLimits: requestlimits.Options{Mode: mode}})
		s := must(New(e, nil))
		if got := newRemoteClient(s).do(t, "CL.THROTTLE", "k", "1", "1", "60"); !strings.Contains(got, "--request-limits") {
			t.Errorf("mode %d, remote: got %s, want an error", mode, got)
		}
		if got := newFakeClient(s).do(t, "CL.THROTTLE", "k", "1", "1", "60"); strings.Contains(got, "--request-limits") == mayLocal {
			t.Errorf("mode %d, local: got %s, want a decision: %t", mode, got, mayLocal)
		}
	}
}

// In a pipeline, commands for which there is no room get an error in their place, and the
// others are decided.
func TestThrottleRefusesNewKeysOverStoreBytes(t *testing.T) {
	e := engine.New(newRedisStore(t, redisServer), &engine.Options{RequestLimits: requestlimits.Options{MaxStoreBytes: 1000}})
	c := newRemoteClient(must(New(e, nil)))
	for _, key := range []string{"a", "b", "c", "a", "d"} {
		c.in = append(c.in, encode("CL.THROTTLE", key, "4", "1", "60")...)
	}
	c.end = len(c.in)
	c.executeBuffered()
	replies := bufio.NewReader(bytes.NewReader(c.out.buf))
	for i, refused := range []bool{false, false, true, false, true} {
		got, err := readReply(replies)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got, "--request-limits-max-redis-bytes") != refused {
			t.Errorf("command %d: got %s, want refused: %t", i, got, refused)
		}
	}
	if n := e.RequestLimits().Refused()[requestlimits.ReasonStoreBytes]; n != 2 {
		t.Errorf("counted %d refusals, want 2", n)
	}
}
