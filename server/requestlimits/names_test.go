package requestlimits

import (
	"testing"

	"github.com/penstock-io/penstock"
)

// The request limit of a rule's own limit is another limit, in whatever form it is
// compared.
func TestLimitIsApartFromRule(t *testing.T) {
	for _, l := range []penstock.Limit{
		penstock.PerMinute(10), penstock.PerMinute(10).WithName("shop/user"),
		{Name: EnvoyName, Algorithm: penstock.FixedWindow, Align: penstock.AlignClock, Count: 1, Period: 1e9},
	} {
		if own := Of(l); own == l || own.Normal() == l.Normal() || own.Identity() == l.Identity() {
			t.Errorf("%v: the request limit has the identity %+v", l, own.Identity())
		}
	}
}
