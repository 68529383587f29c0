package hashtable

import "unsafe"

// Prefetch prefetches the first slot that a search for the hash reads. The table
// must be Large.
func (t *Table) Prefetch(hash uint64) { Prefetch(unsafe.Pointer(&t.words[(hash&t.mask)*t.width])) }
