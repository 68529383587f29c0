//go:build amd64 || arm64

package hashtable

import "unsafe"

// Prefetch asks the processor to load a word into its cache. A plain load would
// not help: reading the clock waits for pending loads, but not for a prefetch.
//
//go:noescape
func Prefetch(word unsafe.Pointer)
