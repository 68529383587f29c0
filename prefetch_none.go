//go:build !amd64 && !arm64

package penstock

import "unsafe"

// prefetch does nothing on processors for which nobody has written it.
func prefetch(unsafe.Pointer) {}
