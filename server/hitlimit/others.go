package hitlimit

import (
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// Envoy's service has windows alone. This file is what it would say of other limits.

// Deny turns a decision that granted less than the cost into a denial. It is about buckets and
// logs, which Envoy's service does not have: they cannot count beyond their limit, so a
// denied descriptor takes what is left. The decision may be about a share of the limit during
// an outage, so the rule's own limit counts.
func Deny(d *penstock.Decision, r *penstock.Request) {
	d.Allowed = false
	d.RetryAfter = max(d.RetryAfter, d.ResetAfter, time.Nanosecond)
	if r.Cost > r.Limit.Capacity()-r.KeepFree {
		d.RetryAfter = penstock.Never
	}
}

// Owes reports whether a peek shows that a bucket is overdrawn. An empty bucket refills in
// the time of its whole burst.
func Owes(l *penstock.Limit, dec *penstock.Decision) bool {
	n := l.Normal()
	if !n.IsBucket() || n.Count == 0 {
		return false
	}
	refill := float64(requestlimits.RefillTime(&n, n.Burst))
	return dec.Remaining == 0 && float64(dec.ResetAfter) > refill*(1+maxRateError)+float64(time.Millisecond)
}

// maxRateError is by how much the rate of a bucket may differ from that of its limit.
const maxRateError = 0.001

// UntilUnit returns when one unit is left again, at the latest.
func UntilUnit(l *penstock.Limit, dec *penstock.Decision) time.Duration {
	n := l.Normal()
	after := dec.ResetAfter
	if n.IsBucket() {
		after -= requestlimits.RefillTime(&n, n.Burst-1)
	}
	return max(after, time.Nanosecond)
}
