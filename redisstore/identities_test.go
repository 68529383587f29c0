package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// These two had the same identity while it was 30 bits of a hash: the second was found by
// trying 86 million limits.
var (
	rule     = penstock.Limit{Name: "shop/user", Count: 10, Period: time.Minute, Burst: 5}
	attacker = penstock.Limit{Untrusted: true, Count: 1, Period: 70277287}
)

// hash30 is the first layout's identity.
func hash30(l penstock.Limit) string {
	id := l.Identity()
	sum := sha256.Sum256(fmt.Appendf(nil, "1 %q %d %d %d %d %d %d %d %q",
		id.Name, id.Algorithm, id.Count, id.Period, id.Burst, id.Buckets, id.Align, id.Offset, id.Zone))
	return base64.RawURLEncoding.EncodeToString(sum[:])[:5]
}

// An untrusted limit and a trusted one have no name in common, whatever their identities.
func TestUntrustedLimitHasOwnNameSpace(t *testing.T) {
	if hash30(rule) != hash30(attacker) {
		t.Fatal("the pair does not collide in 30 bits")
	}
	long := strings.Repeat("long", 100)
	for _, key := range []string{"user=42", "a{b}c", "}", long, "{x}" + long, "?", "?{x}", "?."} {
		trusted, untrusted := stateKey("p", key, identify(rule)), stateKey("p", key, identify(attacker))
		if strings.HasPrefix(trusted, "p?") || !strings.HasPrefix(untrusted, "p?") {
			t.Errorf("key %.20q: names %q and %q, want p? only for the untrusted limit", key, trusted, untrusted)
		}
	}
	if n := len(identify(attacker).text) * 6; n < 128 {
		t.Errorf("an untrusted limit is identified by %d bits, want at least 128", n)
	}
	if n := len(identify(rule).text) * 6; n < 42 {
		t.Errorf("a trusted limit is identified by %d bits, want at least 42", n)
	}
}

// identityOf returns an identity that is the hash of n.
func identityOf(n int) identity {
	return identity{text: fmt.Sprintf("%07x", n), check: uint64(n)}
}

// Coinciding identities are refused, however many limits the store knows.
func TestIdentityCollisionFails(t *testing.T) {
	var table identityTable
	for n := range 20_000 {
		if err := table.claim(identityOf(n)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{0, 19_999, 30_000} {
		other := identityOf(n)
		if err := table.claim(other); err != nil {
			t.Fatalf("limit %d again: %v", n, err)
		}
		other.check++
		if err := table.claim(other); !errors.Is(err, penstock.ErrBadLimit) || !strings.Contains(err.Error(), "another name") {
			t.Errorf("another limit of identity %d: got error %v, want one that asks for another name", n, err)
		}
		other.mark = untrustedMark
		if err := table.claim(other); err != nil {
			t.Errorf("an untrusted limit of identity %d: %v", n, err)
		}
	}
}

// A table that is full refuses limits that it cannot check.
func TestIdentityTableIsBounded(t *testing.T) {
	table := identityTable{checks: make(map[string]uint64, maxIdentities)}
	for n := range uint32(maxIdentities - 2) { // with other texts than those below, and without their cost
		table.checks[string(binary.BigEndian.AppendUint32(nil, n))] = 0
	}
	for n := range 2 {
		if err := table.claim(identityOf(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.claim(identityOf(maxIdentities)); !errors.Is(err, penstock.ErrBadLimit) || !strings.Contains(err.Error(), "Untrusted") {
		t.Errorf("got error %v, want one that mentions Untrusted", err)
	}
	if err := table.claim(identityOf(1)); err != nil {
		t.Errorf("a limit that the table knows: %v", err)
	}
	untrusted := identityOf(maxIdentities)
	untrusted.mark = untrustedMark
	if err := table.claim(untrusted); err != nil {
		t.Errorf("an untrusted limit: %v", err)
	}
}

// Untrusted limits leave nothing behind in the table, so callers cannot fill it.
func TestUntrustedLimitsClaimNothing(t *testing.T) {
	var c limitCache
	for n := range int64(5000) {
		if _, err := c.get(penstock.Limit{Untrusted: true, Count: n + 1, Period: time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.identities.checks); n != 0 {
		t.Errorf("the table has %d identities, want 0", n)
	}
}

// As many rules as a large configuration has are claimed, and a claim of coinciding limits
// reports both, but not in its text.
func TestClaim(t *testing.T) {
	var s Store
	n := 100_000
	if testing.Short() { // the race detector makes hashes slow
		n = 10_000
	}
	limits := make([]penstock.Limit, n)
	for i := range limits {
		limits[i] = penstock.PerMinute(10).WithName(fmt.Sprintf("shop/tenant=%d", i))
	}
	if err := s.Claim(limits...); err != nil {
		t.Fatal(err)
	}
	// Found among five million names; another stateVersion needs another pair.
	one, two := penstock.PerMinute(1).WithName("shop/n704772"), penstock.PerMinute(1).WithName("shop/n4485192")
	err := s.Claim(one, two)
	var claim *ClaimError
	if !errors.As(err, &claim) || claim.Limit != two || claim.Other != one {
		t.Fatalf("got %#v, want an error about both", err)
	}
	if !errors.Is(err, penstock.ErrBadLimit) || strings.Contains(err.Error(), "shop") {
		t.Errorf("got error %v, want ErrBadLimit without a name", err)
	}
	if err := s.Claim(two); !errors.As(err, &claim) || claim.Other != (penstock.Limit{}) {
		t.Errorf("got %#v, want an error without the other limit", err)
	}
	if err := s.Claim(penstock.Limit{}); !errors.Is(err, penstock.ErrBadLimit) {
		t.Errorf("an invalid limit: got error %v", err)
	}
}
