package inflight

import "testing"

func TestKeysEndWithTheLastCall(t *testing.T) {
	var k Keys[string]
	if k.Ended("a") != nil {
		t.Error("a call is in flight before the first")
	}
	endFirst := k.Begin([]string{"a", "b", "b"})
	endSecond := k.Begin([]string{"a"})
	a, b := k.Ended("a"), k.Ended("b")
	endFirst()
	if !isClosed(b) || isClosed(a) {
		t.Errorf("after the first of two calls: b ended %t, a %t; want only b", isClosed(b), isClosed(a))
	}
	endSecond()
	if !isClosed(a) || k.Ended("a") != nil || len(k.calls) != 0 {
		t.Errorf("after both calls: a ended %t, %d keys are left; want none", isClosed(a), len(k.calls))
	}
}
