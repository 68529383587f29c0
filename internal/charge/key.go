package charge

import (
	"slices"

	"github.com/penstock-io/penstock"
)

// addressMark begins the key of an address that stands in for a missing key. No key that a
// program chose may begin with it, so clients cannot forge the address of another.
const addressMark = "\x00"

// IsKey reports whether a key that the program chose can be charged. If not, charge the
// [AddressKey] of the client.
func IsKey(key string) bool { return key != "" && key[0] != addressMark[0] }

// AddressKey returns the key of a client by its address, in place of a key that is missing. It is
// "" if the address is not known.
func AddressKey(address string) string {
	if address == "" {
		return ""
	}
	return addressMark + address
}

// isConcurrent reports whether a limiter grants permits. It may be nil.
func isConcurrent(lim *penstock.Limiter) bool {
	return lim != nil && lim.Limit().HasPermits()
}

// HasPermits reports whether requests hold permits of one of the limiters.
func (s *Set) HasPermits() bool {
	return slices.ContainsFunc(s.limiters, isConcurrent)
}
