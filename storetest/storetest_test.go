package storetest

import (
	"testing"

	"github.com/penstock-io/penstock"
)

// The model is a store itself: the pure steps of the algorithms have to pass
// every test that they judge others by.
func TestModelIsAStore(t *testing.T) {
	Run(t, func(_ testing.TB, clock *Clock) penstock.Store { return newModel(clock) })
}
