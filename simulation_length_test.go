//go:build !race

package penstock_test

// simulationLength is how many decisions a run of the tests simulates.
const simulationLength = 1_000_000
