package faults

func work() error { return nil }
