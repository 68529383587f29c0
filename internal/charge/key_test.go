package charge_test

import (
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

func TestAddressKeyIsNoKeyOfAProgram(t *testing.T) {
	for _, address := range []string{"192.0.2.1", "2001:db8::"} {
		if key := charge.AddressKey(address); key == "" || charge.IsKey(key) {
			t.Errorf("AddressKey(%q) = %q, which IsKey accepts: clients could choose it", address, key)
		}
	}
	if key := charge.AddressKey(""); key != "" {
		t.Errorf("AddressKey of no address = %q, want none", key)
	}
	for key, want := range map[string]bool{"": false, "\x00": false, "\x00192.0.2.1": false, "a": true, "a\x00": true} {
		if got := charge.IsKey(key); got != want {
			t.Errorf("IsKey(%q) = %v, want %v", key, got, want)
		}
	}
}

func TestSetHasPermitsOfOneLimiter(t *testing.T) {
	store := penstock.NewMemory(nil)
	rate, permits := limiter(t, store, "10/s"), limiter(t, store, "10/30s concurrent")
	for _, c := range []struct {
		limiters []*penstock.Limiter
		want     bool
	}{
		{[]*penstock.Limiter{rate, nil}, false},
		{[]*penstock.Limiter{rate, permits}, true},
	} {
		if set, _ := charge.NewSet(c.limiters); set.HasPermits() != c.want {
			t.Errorf("HasPermits of %v = %v, want %v", c.limiters, set.HasPermits(), c.want)
		}
	}
}
