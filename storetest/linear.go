package storetest

import "testing"

func testLinearizability(t *testing.T, open Open) {}
