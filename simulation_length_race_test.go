//go:build race

package penstock_test

// simulationLength is shorter with the race detector, which makes every step ten
// times as slow and finds races in the first few.
const simulationLength = 100_000
