//go:build race

package faults

// racing says whether the race detector watches, which makes everything slow.
const racing = true
