package penstock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestRequestValidateNamesTheKindOfError(t *testing.T) {
	limit := penstock.PerSecond(1)
	for _, c := range []struct {
		request penstock.Request
		want    error
	}{
		{penstock.Request{Key: "k", Limit: limit, Cost: 1}, nil},
		{penstock.Request{Key: "k", Cost: 1}, penstock.ErrBadLimit},
		{penstock.Request{Limit: limit, Cost: 1}, penstock.ErrBadKey},
		{penstock.Request{Key: "k", Limit: limit, Cost: 1, MaxDelay: -time.Second}, penstock.ErrBadCost},
		{penstock.Request{Key: "k", Limit: limit, Cost: -1, AtMost: true}, penstock.ErrBadCost},
		{penstock.Request{Key: "k", Limit: limit, Cost: penstock.Reset, ID: "id"}, penstock.ErrBadCost},
	} {
		if err := c.request.Validate(); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.request, err, c.want)
		}
	}
}

// The limit of a request of a limiter is known to be valid, until it is changed.
func TestRequestValidateChecksAChangedLimit(t *testing.T) {
	r := limiter(t, penstock.NewMemory(nil), "1/1s").Request("k")
	if err := r.Validate(); err != nil {
		t.Errorf("of a limiter: %v, want nil", err)
	}
	r.Limit.Period = -1
	if err := r.Validate(); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("changed: %v, want ErrBadLimit", err)
	}
}

func TestValidateBatchRefusesWhatTakeAllRefuses(t *testing.T) {
	limit := penstock.PerSecond(1)
	good := penstock.Request{Key: "k", Limit: limit, Cost: 1}
	for _, bad := range []penstock.Request{
		{Limit: limit, Cost: 1},
		{Key: "k", Cost: 1},
		{Key: "k", Limit: limit, Cost: 1, AtMost: true},
		{Key: "k", Limit: limit, Cost: -1},
		{Key: "k", Limit: limit, Cost: 1, ID: "id"},
	} {
		rs, ds := []penstock.Request{good, bad}, make([]penstock.Decision, 2)
		err := penstock.ValidateBatch(rs, ds, true)
		want := penstock.TakeAll(t.Context(), penstock.NewMemory(nil), rs, ds)
		if err == nil || want == nil || err.Error() != want.Error() {
			t.Errorf("ValidateBatch with %+v: %v, want %v", bad, err, want)
		}
	}
}

func TestValidateBatchComparesLengths(t *testing.T) {
	rs := []penstock.Request{{Key: "k", Limit: penstock.PerSecond(1), Cost: 1}}
	for _, all := range []bool{false, true} {
		if err := penstock.ValidateBatch(rs, make([]penstock.Decision, 1), all); err != nil {
			t.Errorf("a decision for each request: %v, want nil", err)
		}
		if err := penstock.ValidateBatch(rs, nil, all); err == nil {
			t.Error("one request, no decisions: nil, want an error")
		}
	}
}

func TestValidateBatchOfEachAcceptsWhatTakeAllRefuses(t *testing.T) {
	limit := penstock.PerSecond(1)
	rs := []penstock.Request{{Key: "k", Limit: limit, Cost: 1, ID: "id"}, {Key: "k", Limit: limit, Cost: -1}}
	if err := penstock.ValidateBatch(rs, make([]penstock.Decision, 2), false); err != nil {
		t.Errorf("an ID and a refund: %v, want nil", err)
	}
}
