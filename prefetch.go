//go:build amd64 || arm64

package penstock

import "unsafe"

// prefetch asks the processor to bring a word into its cache. An ordinary load
// would not do: reading the clock waits for loads to end, but not for this.
//
//go:noescape
func prefetch(word unsafe.Pointer)
