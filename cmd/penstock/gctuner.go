package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// A server at rest has a heap of a few megabytes, which Go would collect anew for
// every few megabytes that requests leave behind: many times a second under
// load. So the heap may always grow by leastRoom, and by half when it is large,
// as with a million keys, where doubling would cost too much memory.
const leastRoom = 32 << 20

// giveRoom makes collections rarer. Whoever sets GOGC knows better.
func giveRoom() {
	if os.Getenv("GOGC") == "" {
		adjustRoom(nil)
	}
}

// adjustRoom runs after each collection: it is the finalizer of something that every
// collection finds unused.
func adjustRoom(_ *[16]byte) {
	debug.SetGCPercent(percentFor(liveBytes()))
	runtime.SetFinalizer(new([16]byte), adjustRoom)
}

// percentFor returns by how much a heap with so many bytes in use may grow. Of one
// that is smaller than four megabytes, Go takes the percentage of four.
func percentFor(live uint64) int {
	return int(max(leastRoom*100/max(live, 4<<20), 50))
}

func liveBytes() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return live[0].Value.Uint64()
}
