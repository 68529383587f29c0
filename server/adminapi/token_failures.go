package adminapi

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// tokenFailures limits how many wrong tokens are checked, of one address and in all. As
// fast as a daemon answers, a short token could be guessed.
//
// The other APIs have no such limit: there a client with an outdated token could lock out
// others behind the same address, and traffic must not depend on that.
type tokenFailures struct {
	byAddress, inAll *penstock.Limiter

	mu    sync.RWMutex
	known map[netip.Prefix]struct{} // addresses that sent a right token
}

var (
	failuresByAddress = penstock.PerMinute(10)
	failuresInAll     = penstock.PerSecond(10).WithBurst(100)
)

const (
	maxFailureAddresses = 10_000
	maxKnownAddresses   = 1024
)

func newTokenFailures() *tokenFailures {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: maxFailureAddresses})
	f := &tokenFailures{known: map[netip.Prefix]struct{}{}}
	f.byAddress, _ = penstock.New(store, failuresByAddress) // no error: the limits are valid
	f.inAll, _ = penstock.New(store, failuresInAll)
	return f
}

const allAddresses = "all"

// wait returns how long no token from the address is checked. The bound of all addresses
// does not apply to those that sent a right token before: with it, any remote caller
// could keep operators out.
func (f *tokenFailures) wait(from netip.Addr) time.Duration {
	network := networkOf(from)
	wait := untilNext(f.byAddress, network.String())
	if wait == 0 && !f.isKnown(network) {
		wait = untilNext(f.inAll, allAddresses)
	}
	return wait
}

// untilNext returns when a unit will be left, or 0 if one is. It charges nothing.
func untilNext(l *penstock.Limiter, key string) time.Duration {
	d, err := l.Peek(context.Background(), key)
	if err != nil || d.Remaining > 0 {
		return 0
	}
	limit := l.Limit()
	return limit.Period / time.Duration(limit.Count) // at most: part of it may have passed
}

// note records whether a token from the address was right.
func (f *tokenFailures) note(from netip.Addr, right bool) {
	network := networkOf(from)
	if right {
		f.addKnown(network)
		return
	}
	_, _ = f.byAddress.Allow(context.Background(), network.String()) // no error: it is in memory
	_, _ = f.inAll.Allow(context.Background(), allAddresses)
}

func (f *tokenFailures) isKnown(network netip.Prefix) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	_, ok := f.known[network]
	return ok
}

func (f *tokenFailures) addKnown(network netip.Prefix) {
	if f.isKnown(network) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.known) >= maxKnownAddresses {
		clear(f.known)
	}
	f.known[network] = struct{}{}
}

// networkOf returns what counts as one address: an IPv4 address, or the /64 of an IPv6
// address, since one client has as many as it likes of those.
func networkOf(a netip.Addr) netip.Prefix {
	const clientBits = 64
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = clientBits
	}
	network, _ := a.Prefix(bits) // no error: the address has so many bits
	return network
}
