package requestlimits

import (
	"context"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// A take whose outcome is unknown may have left its state behind. A denial, a refusal or an
// invalid request has not.
func TestFinishAccountsForUnknownOutcomes(t *testing.T) {
	granted := &penstock.Decision{Allowed: true, Granted: 1}
	for _, c := range []struct {
		decision *penstock.Decision
		err      error
		left     bool
	}{
		{granted, nil, true},
		{&penstock.Decision{}, nil, false},
		{&penstock.Decision{}, fmt.Errorf("%w: no answer", penstock.ErrUnavailable), true},
		{&penstock.Decision{}, context.Canceled, true},
		{&penstock.Decision{}, fmt.Errorf("%w: settled without a take", penstock.ErrUnknownID), false},
		{&penstock.Decision{}, &penstock.RequestError{Err: &penstock.FieldError{Field: "Count", Kind: penstock.ErrBadLimit}}, false},
	} {
		p := New(penstock.NewMemory(nil), Options{MaxStoreBytes: 100_000})
		r := penstock.Request{Key: "k", Limit: Of(penstock.PerHour(1)), Cost: 1, ID: "id"}
		a, err := p.Admit(&r, false, func() bool { return false })
		if err != nil || p.StoreBytes() == 0 {
			t.Fatalf("admitted: %v, %d bytes", err, p.StoreBytes())
		}
		if a.Finish(c.decision, c.err); p.StoreBytes() > 0 != c.left {
			t.Errorf("%+v, %v: %d bytes are accounted for, want some: %t", *c.decision, c.err, p.StoreBytes(), c.left)
		}
	}
}

// An attacker who sends ever new keys leaves no more in Redis than the bound, and denials,
// peeks and keys that are known pass.
func TestPolicyBoundsBytesInRedis(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{})
	store := openRedis(t, server)
	const bound = 1 << 20
	p := New(store, Options{MaxStoreBytes: bound})
	remote := func() bool { return false }
	take := func(rs []penstock.Request, mayRefund func() bool) error {
		admitted, err := p.AdmitAll(rs, false, mayRefund)
		if err != nil {
			return err
		}
		ds := make([]penstock.Decision, len(rs))
		err = store.TakeEach(t.Context(), rs, ds)
		FinishAll(admitted, ds, err)
		return err
	}
	limits := []penstock.Limit{
		limitOf(t, "2/1h"), limitOf(t, "1/24h name=x"), limitOf(t, "300/24d sliding-log"), limitOf(t, "5/1h rolling-window"),
	}
	before := number(t, redistest.InfoField(t, server, "used_memory_dataset"))
	refused := 0
	for i := range 1600 { // 102,400 keys
		rs := make([]penstock.Request, 64)
		for j := range rs {
			limit := limits[(i+j)%len(limits)]
			rs[j] = penstock.Request{Key: fmt.Sprintf("%d-%d", i, j), Limit: limit, Cost: limit.Capacity()}
			if j%3 == 0 {
				rs[j].ID = "id"
			}
		}
		if err := take(rs, remote); err != nil {
			refused++
			for j := range rs[:2] { // a list is refused as a whole, so fill up with single ones
				_ = take(rs[j:j+1], remote)
			}
		}
	}
	sum := int64(0)
	for _, name := range keysOf(t, server) {
		sum += number(t, redistest.MustCommand(t, server, "MEMORY", "USAGE", name))
	}
	used := number(t, redistest.InfoField(t, server, "used_memory_dataset")) - before
	if refused < 1500 || sum > bound || used > bound || sum < bound/4 || p.StoreBytes() > bound {
		t.Errorf("keys use %d bytes, Redis %d, the ledger has %d, of %d; %d lists refused", sum, used, p.StoreBytes(), bound, refused)
	}
	for _, r := range []penstock.Request{
		{Key: "0-0", Limit: limits[0], Cost: 1}, {Key: "new", Limit: limits[0]}, {Key: "0-0", Limit: limits[0], Cost: -1},
	} {
		if err := take([]penstock.Request{r}, remote); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	r := penstock.Request{Key: "new", Limit: limits[0], Cost: 1}
	if err := take([]penstock.Request{r}, func() bool { return true }); err != nil {
		t.Errorf("an exempt caller: %v", err)
	}
}
