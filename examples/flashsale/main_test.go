package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

func TestSaleNeverOversells(t *testing.T) {
	for _, test := range []struct {
		stock  int64
		buyers int
		want   string
	}{
		{100, 10_000, "100 of 100 sold to 10000 buyers; 0 got more than two\n"},
		{100, 30, "60 of 100 sold to 30 buyers; 0 got more than two\n"},
		{0, 10, "0 of 0 sold to 10 buyers; 0 got more than two\n"},
	} {
		var out strings.Builder
		if err := run(t.Context(), &out, test.stock, test.buyers); err != nil || out.String() != test.want {
			t.Errorf("got %q, %v, want %q", &out, err, test.want)
		}
	}
	var out strings.Builder
	if err := run(t.Context(), &out, -1, 1); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("a stock of -1: %v", err)
	}
}

// A purchase that finds nothing in stock is not charged to the buyer.
func TestSaleSoldOutCostsBuyerNothing(t *testing.T) {
	s, err := newSale(penstock.NewMemory(nil), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.buy(t.Context(), "first"); !got || err != nil {
		t.Errorf("first: %v, %v", got, err)
	}
	for range 5 {
		if got, err := s.buy(t.Context(), "late"); got || err != nil {
			t.Errorf("late: %v, %v", got, err)
		}
	}
	if d, err := s.perBuyer.Peek(t.Context(), "late"); err != nil || d.Remaining != 2 {
		t.Errorf("the buyer's limit is %v, %v; want 2 remaining", d, err)
	}
}
