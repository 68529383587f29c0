//go:build race

package penstock_test

// simulationLength is shorter where the race detector looks on: it makes every
// step ten times as long, and finds what it finds in the first few.
const simulationLength = 100_000
