//go:build !amd64 && !arm64

package hashtable

import "unsafe"

// Prefetch does nothing on this processor.
func Prefetch(unsafe.Pointer) {}
