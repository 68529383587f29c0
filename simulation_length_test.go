//go:build !race

package penstock_test

// simulationLength is the default number of simulated decisions.
const simulationLength = 1_000_000
