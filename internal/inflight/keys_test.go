package inflight

import "testing"

func TestKeysEndWithTheirCalls(t *testing.T) {
	var k Keys[string]
	if len(k.Of("a")) != 0 {
		t.Error("a call is in flight before the first")
	}
	first, endFirst := k.Begin([]string{"a", "b", "b"})
	calls := k.Of("a")
	second, endSecond := k.Begin([]string{"a"})
	if len(calls) != 1 || calls[0] != first {
		t.Errorf("a waits for %d calls; want the one that had begun", len(calls))
	}
	if both := k.Of("a"); len(both) != 2 || both[0] != first || both[1] != second {
		t.Errorf("a waits for %d calls; want both", len(both))
	}
	endFirst()
	if !isClosed(first) || isClosed(second) || len(k.Of("b")) != 0 || len(k.Of("a")) != 1 {
		t.Errorf("after the first of two calls: first ended %t, second %t, a waits for %d, b for %d; want only the second in flight",
			isClosed(first), isClosed(second), len(k.Of("a")), len(k.Of("b")))
	}
	endSecond()
	if !isClosed(second) || len(k.calls) != 0 {
		t.Errorf("after both calls: second ended %t, %d keys are left; want none", isClosed(second), len(k.calls))
	}
}
