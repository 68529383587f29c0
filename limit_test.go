package penstock_test

import (
	"testing"

	"github.com/penstock-io/penstock"
)

func TestLimitCapacityIsTheLargestGrant(t *testing.T) {
	for _, text := range []string{
		"5/1h", "5/1h burst=3", "0/1h", "5/1h leaky-bucket burst=9", "5/1h fixed-window", "5/1h sliding-window",
		"5/1h rolling-window", "5/1h sliding-log",
	} {
		lim := limiter(t, penstock.NewMemory(nil), text)
		capacity := lim.Limit().Capacity()
		if d, err := lim.AllowN(ctx, "more", capacity+1); err != nil || d.RetryAfter != penstock.Never || d.Limit != capacity {
			t.Errorf("%s: taking %d: %v, %v, want never, of %d", text, capacity+1, d, err, capacity)
		}
		if d, err := lim.AllowN(ctx, "all", capacity); err != nil || !d.Allowed {
			t.Errorf("%s: taking %d: %v, %v, want allowed", text, capacity, d, err)
		}
	}
}
