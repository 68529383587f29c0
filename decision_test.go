package penstock_test

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestDecisionString(t *testing.T) {
	for want, d := range map[string]penstock.Decision{
		"denied remaining=0/0": {},
		"allowed granted=1 remaining=1/10 reset=900ms": {
			Allowed: true, Granted: 1, Limit: 10, Remaining: 1, ResetAfter: 900 * time.Millisecond,
		},
		"denied remaining=2/10 retry=200ms reset=800ms": {
			Limit: 10, Remaining: 2, RetryAfter: 200 * time.Millisecond, ResetAfter: 800 * time.Millisecond,
		},
		"denied remaining=10/10 retry=never": {Limit: 10, Remaining: 10, RetryAfter: penstock.Never},
		"allowed granted=-2 remaining=3/5 delay=1s source=lease": {
			Allowed: true, Granted: -2, Limit: 5, Remaining: 3, Delay: time.Second, Source: penstock.SourceLease,
		},
	} {
		if got := d.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestTightestPicksDenialOrLeastRemainingOrLongestReset(t *testing.T) {
	allow := func(left int64) penstock.Decision { return penstock.Decision{Allowed: true, Remaining: left} }
	deny := func(retry time.Duration) penstock.Decision { return penstock.Decision{RetryAfter: retry} }
	for _, c := range []struct {
		of   []penstock.Decision
		want penstock.Decision
	}{
		{nil, penstock.Decision{}},
		{[]penstock.Decision{allow(3), allow(1), allow(2)}, allow(1)},
		{[]penstock.Decision{allow(3), deny(1), allow(0), deny(5), deny(2)}, deny(5)},
		{[]penstock.Decision{deny(penstock.Never), deny(5)}, deny(penstock.Never)},
		{
			[]penstock.Decision{{Allowed: true, Remaining: 1}, {Allowed: true, Remaining: 5, Delay: 7}},
			penstock.Decision{Allowed: true, Remaining: 1, Delay: 7},
		},
		{
			[]penstock.Decision{{Allowed: true, ResetAfter: 60}, {Allowed: true, ResetAfter: 4077}, {Allowed: true, ResetAfter: 61}},
			penstock.Decision{Allowed: true, ResetAfter: 4077},
		},
		{
			[]penstock.Decision{{RetryAfter: 5, ResetAfter: 6}, {RetryAfter: 5, ResetAfter: 7}, {RetryAfter: 4, ResetAfter: 9}},
			penstock.Decision{RetryAfter: 5, ResetAfter: 7},
		},
	} {
		if got := penstock.Tightest(c.of); got != c.want {
			t.Errorf("of %v: %v, want %v", c.of, got, c.want)
		}
	}
}
