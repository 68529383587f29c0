//go:build amd64 || arm64

package hashtable

import "unsafe"

// Prefetch asks the processor to bring a word into its cache. A load would not
// do: reading the clock waits for loads to end, but not for a prefetch.
//
//go:noescape
func Prefetch(word unsafe.Pointer)
