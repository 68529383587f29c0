package hashtable

import "unsafe"

// Prefetch prefetches the first slot that a search for the hash reads.
func (t *Table) Prefetch(hash uint64) {
	if t.used != 0 {
		Prefetch(unsafe.Pointer(&t.words[(hash&t.mask)*t.width]))
	}
}
