package overrides

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// newSet returns a set in memory with overrides.
func newSet(t testing.TB, all ...Override) *Set {
	t.Helper()
	b, err := Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, b, all...)
	return b
}

func mustPut(t testing.TB, b *Set, all ...Override) {
	t.Helper()
	if err := b.Put(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

func ban(key string) Override { return Override{Rule: "r", Key: key, Limit: "ban"} }

// patternOf returns the pattern of the override that a key has, or "".
func patternOf(b *Set, key string) string {
	if e, _ := b.Index("r").Find(key); e != nil {
		return e.pattern.String()
	}
	return ""
}

func TestFindPrefersKeyThenNetworkThenPrefix(t *testing.T) {
	b := newSet(t,
		ban("ip=203.0.113.7"), ban("ip=203.0.113.0/24"), ban("ip=203.0.113.64/26"), ban("ip=203.0.0.0/16"), ban("ip=2001:db8::/32"),
		ban("ip=::ffff:10.0.0.0/104"), ban("path=/a|ip=198.51.100.0/24"),
		ban("ip=2*"), ban("tenant=7:*"), ban("tenant=7:eu:*"), ban(`star=\*`), ban("tenant=8|*"))
	for key, want := range map[string]string{
		"ip=203.0.113.7":           "ip=203.0.113.7",
		"ip=203.0.113.8":           "ip=203.0.113.0/24",
		"ip=203.0.113.65":          "ip=203.0.113.64/26",
		"ip=203.0.113.0/24":        "ip=203.0.113.0/24", // as a proxy masks it
		"ip=203.0.113.64/25":       "ip=203.0.113.0/24", // larger than the /26
		"ip=203.0.9.9":             "ip=203.0.0.0/16",
		"ip=::ffff:203.0.9.9":      "ip=203.0.0.0/16",
		"ip=203.1.0.0":             "ip=2*",
		"ip=2001:db8:1::1":         "ip=2001:db8::/32",
		"ip=2001:db8:1::/64":       "ip=2001:db8::/32",
		"ip=2001:db9::1":           "ip=2*",
		"ip=10.1.2.3":              "ip=10.0.0.0/8",
		"ip=11.1.2.3":              "",
		"ip=10.1.2":                "",
		"ip=10.1.2.3.4":            "",
		"ip=10.1.2.3/x":            "",
		"ip=":                      "",
		"path=/a|ip=198.51.100.3":  "path=/a|ip=198.51.100.0/24",
		"path=/b|ip=198.51.100.3":  "",
		"ip=198.51.100.3":          "",
		"tenant=7:1":               "tenant=7:*",
		"tenant=7:eu:1":            "tenant=7:eu:*",
		"tenant=7:eu":              "tenant=7:*",
		"tenant=7":                 "",
		"tenant=8|user=1":          "tenant=8|*",
		"star=*":                   `star=\*`,
		"star=*x":                  "",
		"tenant=7:eu:\xff\xff\xff": "tenant=7:eu:*",
	} {
		if got := patternOf(b, key); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
}

func TestFindSkipsEndedOverrides(t *testing.T) {
	past, future := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	until := func(o Override, at time.Time) Override { o.Until = at; return o }
	b := newSet(t, until(ban("ip=203.0.113.7"), past), until(ban("ip=203.0.113.0/24"), past), until(ban("ip=203.0.0.0/16"), future),
		until(ban("ip=2*"), future), until(ban("ip=20*"), past))
	for key, want := range map[string]string{"ip=203.0.113.7": "ip=203.0.0.0/16", "ip=209.0.0.1": "ip=2*"} {
		if got := patternOf(b, key); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
}

// The oracle compares a key with every range.
func TestFindAgreesWithALinearSearch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		var all []Override
		for range rng.IntN(60) {
			addr := netip.AddrFrom4([4]byte{10, byte(rng.IntN(2)), byte(rng.IntN(2)), byte(rng.IntN(4))})
			all = append(all, ban(fmt.Sprintf("k=%s/%d", addr, 8+rng.IntN(25))), ban("k="+randomText(rng)+"*"))
			if rng.IntN(4) == 0 {
				all = append(all, ban("k="+randomText(rng)))
			}
		}
		b := newSet(t, all...)
		for range 100 {
			key := "k=" + randomText(rng)
			if rng.IntN(2) == 0 {
				key = fmt.Sprintf("k=10.%d.%d.%d", rng.IntN(2), rng.IntN(3), rng.IntN(5))
			}
			if got, want := patternOf(b, key), linearSearch(all, key); got != want {
				t.Fatalf("%q among %v: got %q, want %q", key, all, got, want)
			}
			found, _ := b.Index("r").Find(key)
			if peeked, _ := b.Index("r").Peek(key); peeked != found {
				t.Fatalf("%q among %v: Peek and Find differ", key, all)
			}
		}
	}
}

func randomText(rng *rand.Rand) string {
	text := make([]byte, rng.IntN(5))
	for i := range text {
		text[i] = "ab"[rng.IntN(2)]
	}
	return string(text)
}

func linearSearch(all []Override, key string) string {
	best, network := "", netip.Prefix{}
	addr, _ := netip.ParseAddr(strings.TrimPrefix(key, "k="))
	for _, o := range all {
		p, _ := ParsePattern(o.Key)
		switch {
		case !p.prefix && !p.network.IsValid() && p.text == key:
			return p.String()
		case p.network.IsValid() && p.network.Contains(addr) && p.network.Bits() > network.Bits():
			network, best = p.network, p.String()
		case p.prefix && !network.IsValid() && strings.HasPrefix(key, p.text) && len(p.text)+1 > len(best):
			best = p.String()
		}
	}
	return best
}

func TestFindDoesNotAllocate(t *testing.T) {
	b := newSet(t, ban("ip=203.0.113.7"), ban("ip=203.0.113.0/24"), ban("tenant=7:*"))
	x := b.Index("r")
	for _, key := range []string{"ip=203.0.113.7", "ip=203.0.113.8", "ip=203.0.114.1", "ip=hello", "tenant=7:1", "tenant=9"} {
		if n := testing.AllocsPerRun(100, func() { x.Find(key) }); n != 0 {
			t.Errorf("%s: %v allocations", key, n)
		}
	}
}

func TestIndexIsEmptyAfterTheLastOverride(t *testing.T) {
	b := newSet(t)
	for i := range 500 {
		mustPut(t, b, ban(fmt.Sprint("k=", i)), ban(fmt.Sprint("k=", i, "*")))
	}
	if b.Index("r").Empty() || patternOf(b, "k=77") != "k=77" || patternOf(b, "k=88x") != "k=88*" {
		t.Fatal("overrides are missing")
	}
	for i := range 500 {
		if err := b.Delete(t.Context(), []Override{ban(fmt.Sprint("k=", i)), ban(fmt.Sprint("k=", i, "*"))}); err != nil {
			t.Fatal(err)
		}
	}
	if !b.Index("r").Empty() {
		t.Error("the index is not empty")
	}
}

func TestPatternTextRoundTrips(t *testing.T) {
	for text, want := range map[string]string{
		"user=42": "user=42", "user=*": "user=*", "*": "*", `user=a\*`: `user=a\*`, "ip=10.9.8.7/8": "ip=10.0.0.0/8",
		"10.0.0.0/8": "10.0.0.0/8", "ip=10.0.0.0/33": "ip=10.0.0.0/33", "ip=fe80::1%eth0/64": "ip=fe80::1%eth0/64", "user=a/b": "user=a/b",
		`ip=10.0.0.0\/8`: `ip=10.0.0.0\/8`, `ip=10.0.0.0\\/8`: `ip=10.0.0.0\\/8`, `10.9.8.7\/8`: `10.9.8.7\/8`, `user=a\/b`: `user=a\/b`,
	} {
		p, err := ParsePattern(text)
		if err != nil || p.String() != want {
			t.Errorf("%q: got %q %v, want %q", text, p.String(), err, want)
		}
		if again, _ := ParsePattern(p.String()); again != p {
			t.Errorf("%q: %+v became %+v", text, p, again)
		}
	}
}

// The pattern of a key is about no other key, whatever a client chose as its last value.
func TestLiteralIsAboutOneKey(t *testing.T) {
	for _, key := range []string{
		"user=42", "user=*", `user=a\\*`, "ip=0.0.0.0/0", "ip=::/0", "ip=10.1.2.3/8", `ip=10.0.0.0\\/8`, `user=a\=10.0.0.0/8`, "10.0.0.0/8",
	} {
		p, err := ParsePattern(Literal(key))
		if err != nil || !p.Exact() || p.text != key {
			t.Errorf("%q: %q is about %+v, %v", key, Literal(key), p, err)
		}
	}
}
