package redisstore

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestStateNameIsShort(t *testing.T) {
	key := "twenty-bytes-of-name"
	name := stateKey(defaultPrefix, key, identify(penstock.PerSecond(10)))
	if got := len(name) - len(key); got > 10 {
		t.Errorf("%q adds %d bytes to %q, want at most 10", name, got, key)
	}
}

// No two keys, prefixes and identities share a name, whatever bytes a key has.
func TestStateNamesAreInjective(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	pieces := []string{"{", "}", "{}", "a", "b", ".", "#", "!", "?", "p", "Xk3_a9Q", "aaaaaaa", "\x00", "\xff", "{a}", strings.Repeat("x", 250)}
	keys := map[string]bool{}
	samples := 20_000
	if testing.Short() {
		samples = 3000
	}
	for range samples {
		var key strings.Builder
		for range 1 + random.IntN(6) {
			key.WriteString(pieces[random.IntN(len(pieces))])
		}
		keys[key.String()] = true
	}
	identities := []identity{{text: "Xk3_a9Q"}, {text: "aaaaaaa"}, {text: "}{aa}aa"}, {text: strings.Repeat("a", untrustedLen), mark: untrustedMark}}
	owner := map[string][2]string{}
	for key := range keys {
		for _, prefix := range []string{"p", "pp"} {
			for _, id := range identities {
				name := stateKey(prefix, key, id)
				checkOwner(t, owner, name, [2]string{prefix + "/" + id.text, key})
				checkOwner(t, owner, recordKey(prefix, name, "id"), [2]string{prefix + "/" + id.text + "/id", key})
			}
		}
	}
}

func checkOwner(t *testing.T, owner map[string][2]string, name string, user [2]string) {
	t.Helper()
	if other, taken := owner[name]; taken && other != user {
		t.Fatalf("%q names both %q and %q", name, other, user)
	}
	owner[name] = user
}

// All states and records of one key share a slot, and so do keys with the same hash
// tag.
func TestStateNamesShareSlot(t *testing.T) {
	long := strings.Repeat("long", 100)
	for _, key := range []string{"user:42", "}", "}x", "a}b", "a{}b", "{", "a{b}c", "{x}", long, "{x}" + long, "{" + long + "}", "}" + long} {
		one, two := stateKey("p", key, identity{text: "aaaaaaa"}), stateKey("p", key, identity{text: "bbbbbbb", mark: untrustedMark})
		if slotOf(one) != slotOf(two) || slotOf(one) != slotOf(recordKey("p", one, "id")) {
			t.Errorf("key %.20q: slots %d and %d, record %d, want one slot",
				key, slotOf(one), slotOf(two), slotOf(recordKey("p", one, "id")))
		}
		if hashTag(one) == "" {
			t.Errorf("key %.20q: name %.40q has no tag", key, one)
		}
	}
	for _, pair := range [][2]string{{"a{x}", "b{x}c"}, {"{x}", "{x}" + long}, {"{" + long + "}a", "{" + long + "}b"}} {
		id := identity{text: "aaaaaaa"}
		one, two := stateKey("p", pair[0], id), stateKey("p", pair[1], id)
		if slotOf(one) != slotOf(two) {
			t.Errorf("keys %.20q and %.20q: slots %d and %d, want one slot", pair[0], pair[1], slotOf(one), slotOf(two))
		}
	}
	// The result of CLUSTER KEYSLOT.
	if got, want := slotOf("p{user:42}aaaaa"), uint16(15880); got != want {
		t.Errorf("slot of user:42: got %d, want %d", got, want)
	}
}

// The identity of a limit contains what its state depends on and nothing else.
func TestLimitIdentityCoversStateFields(t *testing.T) {
	named := penstock.Limit{Name: "n", Count: 10, Period: time.Minute}
	for _, same := range [][2]penstock.Limit{
		{named, {Name: "n", Count: 20, Period: time.Hour, Burst: 5}},
		{penstock.PerMinute(10), {Count: 10, Period: time.Minute, Burst: 10, Buckets: 3, Zone: "Asia/Tokyo"}},
	} {
		if identify(same[0]) != identify(same[1]) {
			t.Errorf("%s and %s: got two identities, want one", same[0], same[1])
		}
	}
	untrusted := named
	untrusted.Untrusted = true
	var all []string
	for _, other := range []penstock.Limit{
		named, untrusted, named.WithName("m"), named.WithName(""), penstock.PerMinute(11), penstock.PerMinute(10).WithBurst(9),
		named.WithAlgorithm(penstock.LeakyBucket), named.WithAlgorithm(penstock.FixedWindow),
		{Name: "n", Algorithm: penstock.FixedWindow, Count: 10, Period: time.Hour},
		{Name: "n", Algorithm: penstock.FixedWindow, Count: 10, Period: time.Minute, Align: penstock.AlignClock},
		{Name: "n", Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignDay},
		{Name: "n", Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignDay, Zone: "Asia/Tokyo"},
		{Name: "n", Algorithm: penstock.RollingWindow, Count: 10, Period: time.Minute, Buckets: 7},
	} {
		id := identify(other).text
		if slices.Contains(all, id) {
			t.Errorf("%s: its identity %s is not unique", other, id)
		}
		all = append(all, id)
	}
}
