package storetest

import "testing"

func testKeys(t *testing.T, open Open) {}
