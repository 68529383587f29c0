package rlqs

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
)

func TestDivideIsMaxMinFair(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		units         int64
		wants, shares []int64
	}{
		{0, []int64{3, 4}, []int64{0, 0}},
		{10, []int64{2, 3}, []int64{2, 3}},
		{10, []int64{2, 8, 10}, []int64{2, 4, 4}},
		{10, []int64{8, 2, 10}, []int64{4, 2, 4}},
		{11, []int64{100, 100, 100}, []int64{4, 4, 3}}, // the first get what is left over
		{1, []int64{5, 5, 5}, []int64{1, 0, 0}},
		{7, nil, []int64{}},
		{-5, []int64{1}, []int64{0}},
	} {
		if got := divide(c.units, c.wants); !slices.Equal(got, c.shares) {
			t.Errorf("divide(%d, %v) = %v, want %v", c.units, c.wants, got, c.shares)
		}
	}
}

func TestDivideKeepsProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.Int64Range(0, 1000).Draw(t, "units")
		wants := rapid.SliceOfN(rapid.Int64Range(0, 300), 1, 12).Draw(t, "wants")
		shares := divide(units, wants)
		sum, wanted := int64(0), int64(0)
		for i := range wants {
			sum, wanted = sum+shares[i], wanted+wants[i]
			if shares[i] < 0 || shares[i] > wants[i] {
				t.Fatalf("share %d of %d wanted", shares[i], wants[i])
			}
		}
		if sum != min(units, wanted) {
			t.Fatalf("%d units of %d were divided, and %d wanted: %v to %v", sum, units, wanted, wants, shares)
		}
		for i := range wants { // one that wants more has no less than another, up to a unit
			for j := range wants {
				if shares[i] < wants[i] && shares[j] > shares[i]+1 {
					t.Fatalf("%v to %v: %d has less than %d, and wants more", wants, shares, i, j)
				}
			}
		}
	})
}
