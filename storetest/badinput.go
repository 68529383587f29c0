package storetest

import "testing"

func testBadInput(t *testing.T, open Open) {}
