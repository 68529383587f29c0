package storetest

import "testing"

func testCrowd(t *testing.T, open Open) {}
