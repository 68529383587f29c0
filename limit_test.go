package penstock_test

import (
	"testing"
	"time"

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

// What a customer who has used up a plan gets at once from one ten times as large.
func TestLimitRaisedUnderOneNameKeepsDebt(t *testing.T) {
	for _, c := range []struct {
		old, raised string
		want        int64
	}{
		{"60/1m", "600/1m", 0},
		{"60/1m burst=60", "60/1m burst=600", 540},
		{"60/1m fixed-window", "600/1m fixed-window", 540},
	} {
		now := time.Unix(1e9, 0)
		store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
		if d, err := limiter(t, store, c.old+" name=plan").AllowN(ctx, "ada", 60); err != nil || !d.Allowed {
			t.Fatalf("%s: %v, %v", c.old, d, err)
		}
		if d, err := limiter(t, store, c.raised+" name=plan").Peek(ctx, "ada"); err != nil || d.Remaining != c.want {
			t.Errorf("from %s to %s: %d remain, %v, want %d", c.old, c.raised, d.Remaining, err, c.want)
		}
	}
}
