package storetest

import "testing"

func testPromises(t *testing.T, open Open) {}
