package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// An idle server has a heap of a few megabytes. By default Go would collect garbage each
// time that requests have allocated as much again: many times a second under load. So the
// heap may always grow by minHeapGrowth, and by half when it is large, as with a million
// keys, where doubling would cost too much memory.
const minHeapGrowth = 32 << 20

// tuneGC makes garbage collections rarer, unless GOGC is set.
func tuneGC() {
	if os.Getenv("GOGC") == "" {
		adjustGCPercent(nil)
	}
}

// adjustGCPercent runs after each collection: it is the finalizer of an object that
// nothing refers to.
func adjustGCPercent(_ *[16]byte) {
	debug.SetGCPercent(gcPercent(liveHeapBytes()))
	runtime.SetFinalizer(new([16]byte), adjustGCPercent)
}

// gcPercent returns the growth in percent for a heap of live bytes. Go applies the
// percentage to at least four megabytes.
func gcPercent(live uint64) int {
	return int(max(minHeapGrowth*100/max(live, 4<<20), 50))
}

func liveHeapBytes() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}
