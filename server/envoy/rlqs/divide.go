package rlqs

import "slices"

// divide divides units by max-min fairness: no share exceeds what is wanted, and none can
// grow without making a smaller one smaller. Units that cannot be divided evenly go to those
// that come first. It returns the shares in the order of wants.
func divide(units int64, wants []int64) []int64 {
	shares := make([]int64, len(wants))
	level, left := fillLevel(units, wants)
	for i, want := range wants {
		shares[i] = min(want, level)
	}
	for i, want := range wants {
		if left > 0 && want > shares[i] {
			shares[i]++
			left--
		}
	}
	return shares
}

// fillLevel returns the largest share that all larger wants can get, and how many units are
// left then, which are fewer than there are unfulfilled wants.
func fillLevel(units int64, wants []int64) (level, left int64) {
	sorted := slices.Sorted(slices.Values(wants))
	left = max(units, 0)
	for i, want := range sorted {
		others := int64(len(sorted) - i)
		if want-level > left/others {
			step := left / others
			return level + step, left - step*others
		}
		left -= (want - level) * others
		level = want
	}
	return level, 0
}
