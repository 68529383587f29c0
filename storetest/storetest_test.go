package storetest

import (
	"testing"

	"github.com/penstock-io/penstock"
)

// The model is a store itself, and must pass the tests that compare other stores with
// it.
func TestRunAcceptsModel(t *testing.T) {
	Run(t, func(_ testing.TB, clock *Clock) penstock.Store { return newModel(clock) })
}
