package penstock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestRequestValidateShapeIgnoresTheLimit(t *testing.T) {
	r := penstock.Request{Key: "k", Cost: 1}
	if err := r.ValidateShape(); err != nil {
		t.Errorf("ValidateShape without a limit: %v, want nil", err)
	}
	if err := r.Validate(); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("Validate without a limit: %v, want ErrBadLimit", err)
	}
	for _, bad := range []struct {
		request penstock.Request
		want    error
	}{
		{penstock.Request{Cost: 1}, penstock.ErrBadKey},
		{penstock.Request{Key: "k", Cost: 1, MaxDelay: -time.Second}, penstock.ErrBadCost},
		{penstock.Request{Key: "k", Cost: -1, AtMost: true}, penstock.ErrBadCost},
		{penstock.Request{Key: "k", Cost: penstock.Reset, ID: "id"}, penstock.ErrBadCost},
	} {
		if err := bad.request.ValidateShape(); !errors.Is(err, bad.want) {
			t.Errorf("ValidateShape of %+v: %v, want %v", bad.request, err, bad.want)
		}
	}
}

func TestValidateAllRefusesWhatTakeAllRefuses(t *testing.T) {
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
		err := penstock.ValidateAll(rs, ds)
		want := penstock.TakeAll(t.Context(), penstock.NewMemory(nil), rs, ds)
		if err == nil || want == nil || err.Error() != want.Error() {
			t.Errorf("ValidateAll with %+v: %v, want %v", bad, err, want)
		}
	}
}

func TestValidateEachAndAllCompareLengths(t *testing.T) {
	rs := []penstock.Request{{Key: "k", Limit: penstock.PerSecond(1), Cost: 1}}
	for _, validate := range []func([]penstock.Request, []penstock.Decision) error{penstock.ValidateEach, penstock.ValidateAll} {
		if err := validate(rs, make([]penstock.Decision, 1)); err != nil {
			t.Errorf("a decision for each request: %v, want nil", err)
		}
		if err := validate(rs, nil); err == nil {
			t.Error("one request, no decisions: nil, want an error")
		}
	}
}

func TestValidateEachAcceptsWhatTakeAllRefuses(t *testing.T) {
	limit := penstock.PerSecond(1)
	rs := []penstock.Request{{Key: "k", Limit: limit, Cost: 1, ID: "id"}, {Key: "k", Limit: limit, Cost: -1}}
	if err := penstock.ValidateEach(rs, make([]penstock.Decision, 2)); err != nil {
		t.Errorf("an ID and a refund: %v, want nil", err)
	}
}
