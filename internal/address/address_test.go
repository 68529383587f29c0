package address

import (
	"net/netip"
	"strings"
	"testing"
)

var resolver = NewResolver([]netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48"),
}, 64)

func TestKeyOfPeerIsAddressOrPrefix(t *testing.T) {
	for peer, want := range map[string]string{
		"203.0.113.9:1234":            "203.0.113.9",
		"203.0.113.9":                 "203.0.113.9",
		"[2001:db8:1:2:3:4:5:6]:1234": "2001:db8:1:2::/64",
		"[2001:db8:1:2::1]":           "2001:db8:1:2::/64",
		"2001:db8:1:2::1":             "2001:db8:1:2::/64",
		"2001:db8:1:2::1%eth0":        "2001:db8:1:2::/64",
		"[::ffff:203.0.113.9]:1234":   "203.0.113.9",
		"[::ffff:203.0.113.9%x]:1234": "203.0.113.9",
		"[fe80::1%eth0]:1234":         "fe80::1%eth0",
		"[fe80::1%eth1]:1234":         "fe80::1%eth1",
		"[fe80::2%eth0]:1234":         "fe80::2%eth0",
		"[::1]:1234":                  "::1",
		"[fd00::1]:1234":              "fd00::1",
		"[fd00::2]:1234":              "fd00::2",
		"":                            "",
		"@":                           "", // a Unix socket
		"unknown":                     "",
		"_hidden:99":                  "",
		"203.0.113.09:1":              "",
		"203.0.113.9.5":               "",
		"[2001:db8::1":                "",
		"[2001:db8::1]1234":           "",
		"[]":                          "",
		":":                           "",
		"[":                           "",
		"pipe":                        "",
		"203.0.113.9:1:2":             "",
		strings.Repeat("1", 1<<20):    "",
		"[fe80::1%" + strings.Repeat("z", 1<<20) + "]:1": "",
	} {
		if got := resolver.Key(peer, []string{"198.51.100.1"}); got != want {
			t.Errorf("%.60q has the key %q, want %q", peer, got, want)
		}
	}
}

func TestKeyBehindProxiesIsFirstUntrustedAddress(t *testing.T) {
	const proxy = "10.0.0.1:1234"
	for _, test := range []struct {
		name      string
		peer      string
		forwarded []string
		want      string
	}{
		{"IPv4", proxy, []string{"203.0.113.9"}, "203.0.113.9"},
		{"IPv4 with a port", proxy, []string{"203.0.113.9:5678"}, "203.0.113.9"},
		{"IPv6", proxy, []string{"2001:db8::1"}, "2001:db8::/64"},
		{"IPv6 with brackets and a port", proxy, []string{"[2001:db8::1]:443"}, "2001:db8::/64"},
		{"link-local, whose zone is another host's", proxy, []string{"fe80::1%eth0"}, "fe80::1"},
		{"address forged by the client", proxy, []string{"198.51.100.1, 203.0.113.9"}, "203.0.113.9"},
		{"proxy forged by the client", proxy, []string{"10.0.0.7, 203.0.113.9"}, "203.0.113.9"},
		{"garbage sent by the client", proxy, []string{"<script>,, ,203.0.113.9"}, "203.0.113.9"},
		{"two proxies", proxy, []string{"203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"two proxies, the second with a zone", proxy, []string{"203.0.113.9, 2001:db8:ffff::2%eth0"}, "203.0.113.9"},
		{"two proxies, IPv6-mapped", "[::ffff:10.0.0.1]:1", []string{"203.0.113.9, ::ffff:10.0.0.2"}, "203.0.113.9"},
		{"several header lines", proxy, []string{"198.51.100.1", "203.0.113.9, 10.0.0.3", "10.0.0.2"}, "203.0.113.9"},
		{"empty lines and items", proxy, []string{"203.0.113.9", "", " , ,"}, "203.0.113.9"},
		{"request of the proxy itself", proxy, nil, "10.0.0.1"},
		{"request of a proxy behind another", proxy, []string{"10.0.0.2"}, "10.0.0.2"},
		{"peer that is not a proxy", "203.0.113.9:1", []string{"198.51.100.1"}, "203.0.113.9"},
		{"client unknown to the proxy", proxy, []string{"203.0.113.9, unknown"}, ""},
		{"garbage sent by the proxy", proxy, []string{"203.0.113.9, \x00"}, ""},
		{"longest chain", proxy, []string{"203.0.113.9" + strings.Repeat(", 10.0.0.2", maxProxies-2)}, "203.0.113.9"},
		{"chain of too many proxies", proxy, []string{"203.0.113.9" + strings.Repeat(", 10.0.0.2", maxProxies)}, ""},
	} {
		before := strings.Join(test.forwarded, "\n")
		if got := resolver.Key(test.peer, test.forwarded); got != test.want {
			t.Errorf("%s: %q by %q has the key %q, want %q", test.name, test.forwarded, test.peer, got, test.want)
		}
		if after := strings.Join(test.forwarded, "\n"); after != before {
			t.Errorf("%s: the header was changed to %q", test.name, after)
		}
	}
}

// The peer is not in the chain, and is trusted without its address.
func TestForwardedKeyIsLastUntrustedAddress(t *testing.T) {
	for _, test := range []struct {
		name      string
		forwarded []string
		want      string
	}{
		{"IPv4", []string{"203.0.113.9"}, "203.0.113.9"},
		{"IPv4 with a port", []string{"203.0.113.9:5678"}, "203.0.113.9"},
		{"IPv6-mapped", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"IPv6", []string{"2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::/64"},
		{"IPv6 with brackets", []string{"[2001:db8:1:2::1]"}, "2001:db8:1:2::/64"},
		{"IPv6 with a port", []string{"[2001:db8:1:2::1]:443"}, "2001:db8:1:2::/64"},
		{"IPv6 with a zone", []string{"2001:db8:1:2::1%eth0"}, "2001:db8:1:2::/64"},
		{"link-local, whose zone is another host's", []string{"fe80::1%eth0"}, "fe80::1"},
		{"space around it", []string{" \t203.0.113.9 "}, "203.0.113.9"},
		{"forged by the client", []string{"198.51.100.1, 203.0.113.9"}, "203.0.113.9"},
		{"forged in lines", []string{"198.51.100.1", "203.0.113.9"}, "203.0.113.9"},
		{"garbage sent by the client", []string{"<script>,, ,203.0.113.9"}, "203.0.113.9"},
		{"behind a trusted proxy", []string{"198.51.100.1, 203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"trusted proxy itself", []string{"10.0.0.2"}, "10.0.0.2"},
		{"trusted proxies only", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"no header", nil, ""},
		{"empty", []string{"", " , "}, ""},
		{"unknown", []string{"203.0.113.9, unknown"}, ""},
		{"unknown to a trusted proxy", []string{"unknown, 10.0.0.2"}, ""},
		{"quoted", []string{`"203.0.113.9"`}, ""},
		{"element of Forwarded", []string{"for=203.0.113.9"}, ""},
		{"host name", []string{"localhost"}, ""},
		{"leading zero", []string{"203.0.113.09"}, ""},
		{"too long", []string{strings.Repeat("1", 1<<16)}, ""},
		{"longest chain", []string{"203.0.113.9" + strings.Repeat(", 10.0.0.2", maxProxies-1)}, "203.0.113.9"},
		{"chain of too many proxies", []string{"203.0.113.9" + strings.Repeat(", 10.0.0.2", maxProxies)}, ""},
	} {
		if got := resolver.ForwardedKey(test.forwarded); got != test.want {
			t.Errorf("%s: %.80q has the key %q, want %q", test.name, test.forwarded, got, test.want)
		}
	}
}

// A client with an IPv4 address is identified by it, however it is embedded in
// IPv6.
func TestKeyOfEmbeddedIPv4IsThatAddress(t *testing.T) {
	for client, ways := range map[string][]string{
		"203.0.113.9": {
			"::ffff:203.0.113.9", "64:ff9b::203.0.113.9",
			"2002:cb00:7109::1", "2002:cb00:7109:1::1", "2002:cb00:7109:ffff:1:2:3:4", // prefixes of one site
			"2001:0:4136:e378:8000:63bf:34ff:8ef6", "2001:0:53aa:64c:0:1:34ff:8ef6", // servers and ports of one client
		},
		"203.0.113.10": {
			"::ffff:203.0.113.10", "64:ff9b::203.0.113.10", "2002:cb00:710a::1", "2001:0:4136:e378:8000:63bf:34ff:8ef5",
		},
		"64:ff9b:1::cb00:7109":  {"64:ff9b:1::203.0.113.9"}, // local prefix, whose layout is not known
		"64:ff9b:1::cb00:710a":  {"64:ff9b:1::203.0.113.10"},
		"::cb00:7109":           {"::203.0.113.9"},
		"::cb00:710a":           {"::203.0.113.10"},
		"2001:1::/64":           {"2001:1::1", "2001:1::2"}, // next to the Teredo prefix
		"2003:cb00:7109:1::/64": {"2003:cb00:7109:1::1"},
	} {
		for _, way := range ways {
			for _, bits := range []int{48, 64, 128} {
				r := NewResolver(nil, bits)
				if got := r.Key("["+way+"]:1234", nil); got != client && (bits == 64 || !strings.HasSuffix(client, "/64")) {
					t.Errorf("%s, with %d bits: key %q, want %q", way, bits, got, client)
				}
			}
		}
	}
}

// An IPv4 proxy is recognized in its IPv4 and its IPv6-mapped form.
func TestNewResolverUnmapsProxies(t *testing.T) {
	for text, trusted := range map[string]bool{
		"::ffff:10.0.0.0/104": true, "::ffff:10.0.0.1/128": true, "::ffff:0.0.0.0/96": true, "10.0.0.0/8": true,
		"::ffff:10.0.0.2/128": false, "::ffff:11.0.0.0/104": false, "::/0": false,
	} {
		r := NewResolver([]netip.Prefix{netip.MustParsePrefix(text)}, 0)
		for _, proxy := range []string{"10.0.0.1:1", "[::ffff:10.0.0.1]:1"} {
			if got := r.Key(proxy, []string{"203.0.113.9"}); (got == "203.0.113.9") != trusted {
				t.Errorf("with %s as a proxy, a client behind %s has the key %q", text, proxy, got)
			}
		}
	}
	// An address that embeds that of a proxy is not a proxy: a client can choose it.
	if got := resolver.Key("[2002:a00:1::1]:1", []string{"203.0.113.9"}); got != "10.0.0.1" {
		t.Errorf("an address that embeds 10.0.0.1 was trusted: %q", got)
	}
}

func TestKeyUsesPrefixBits(t *testing.T) {
	for bits, want := range map[int]string{
		48: "2001:db8:1::/48", 56: "2001:db8:1:200::/56", 128: "2001:db8:1:2ff::1", 999: "2001:db8:1:2ff::1", 0: "2001:db8:1:2ff::/64", -1: "2001:db8:1:2ff::/64",
	} {
		r := NewResolver(nil, bits)
		if got := r.Key("[2001:db8:1:2ff::1]:1", nil); got != want {
			t.Errorf("with %d bits: %q, want %q", bits, got, want)
		}
	}
}

func TestPrivateContainsPrivateAddresses(t *testing.T) {
	r := NewResolver(Private(), 64)
	for _, inside := range []string{"127.0.0.1:1", "[::1]:1", "10.1.2.3:1", "172.31.0.1:1", "192.168.1.1:1", "[fd12::1]:1"} {
		if got := r.Key(inside, []string{"203.0.113.9"}); got != "203.0.113.9" {
			t.Errorf("%s is not trusted as a proxy: %q", inside, got)
		}
	}
	for _, outside := range []string{"172.32.0.1:1", "192.169.0.1:1", "11.0.0.1:1", "169.254.1.1:1"} {
		if got := r.Key(outside, []string{"203.0.113.9"}); got == "203.0.113.9" {
			t.Errorf("%s is trusted as a proxy", outside)
		}
	}
}

func TestKeyOfIPv4AllocatesNothing(t *testing.T) {
	forwarded := []string{"198.51.100.1, 203.0.113.9"}
	for _, peer := range []string{"203.0.113.9:1234", "10.0.0.1:1234"} {
		if n := testing.AllocsPerRun(100, func() { resolver.Key(peer, forwarded) }); n != 0 {
			t.Errorf("%s: %v allocations", peer, n)
		}
	}
}

// A client that controls the forwarded chain, but not what a proxy appends,
// cannot take another client's identity.
func FuzzKey(f *testing.F) {
	f.Add("198.51.100.1", "10.0.0.7")
	f.Add("[::1%lo]:1, ,", "\x00")
	f.Add(",,,", "::ffff:10.0.0.1")
	f.Fuzz(func(t *testing.T, line, item string) {
		const client = "203.0.113.9"
		for _, forwarded := range [][]string{{line, item + ", " + client}, {line + ",", item, client}, {line + "," + client, "10.0.0.2"}} {
			if got := resolver.Key("10.0.0.1:1", forwarded); got != client {
				t.Errorf("with %q, %s has the key %q", forwarded, client, got)
			}
		}
		if got := resolver.Key("10.0.0.1:1", []string{line, item}); strings.ContainsAny(got, ", \t\r\n") {
			t.Errorf("%q, %q: key with separators: %q", line, item, got)
		}
		resolver.Key(line, []string{item})
	})
}
