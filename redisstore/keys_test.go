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
	if got := len(name) - len(key); got > 8 {
		t.Errorf("%q adds %d bytes to %q, want at most 8", name, got, key)
	}
}

// No two keys, prefixes and identities share a name, whatever bytes a key has.
func TestStateNamesAreInjective(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	pieces := []string{"{", "}", "{}", "a", "b", ".", "#", "!", "p", "Xk3_a", "\x00", "\xff", "{a}", strings.Repeat("x", 250)}
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
	identities := []string{"Xk3_a", "aaaaa", "}{aa}"}
	owner := map[string][2]string{}
	for key := range keys {
		for _, prefix := range []string{"p", "pp"} {
			for _, identity := range identities {
				name := stateKey(prefix, key, identity)
				checkOwner(t, owner, name, [2]string{prefix + "/" + identity, key})
				checkOwner(t, owner, recordKey(prefix, name, "id"), [2]string{prefix + "/" + identity + "/id", key})
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
		one, two := stateKey("p", key, "aaaaa"), stateKey("p", key, "bbbbb")
		if slotOf(one) != slotOf(two) || slotOf(one) != slotOf(recordKey("p", one, "id")) {
			t.Errorf("key %.20q: slots %d and %d, record %d, want one slot",
				key, slotOf(one), slotOf(two), slotOf(recordKey("p", one, "id")))
		}
		if hashTag(one) == "" {
			t.Errorf("key %.20q: name %.40q has no tag", key, one)
		}
	}
	for _, pair := range [][2]string{{"a{x}", "b{x}c"}, {"{x}", "{x}" + long}, {"{" + long + "}a", "{" + long + "}b"}} {
		one, two := stateKey("p", pair[0], "aaaaa"), stateKey("p", pair[1], "aaaaa")
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
	var all []string
	for _, other := range []penstock.Limit{
		named, named.WithName("m"), named.WithName(""), penstock.PerMinute(11), penstock.PerMinute(10).WithBurst(9),
		named.WithAlgorithm(penstock.LeakyBucket), named.WithAlgorithm(penstock.FixedWindow),
		{Name: "n", Algorithm: penstock.FixedWindow, Count: 10, Period: time.Hour},
		{Name: "n", Algorithm: penstock.FixedWindow, Count: 10, Period: time.Minute, Align: penstock.AlignClock},
		{Name: "n", Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignDay},
		{Name: "n", Algorithm: penstock.FixedWindow, Count: 10, Align: penstock.AlignDay, Zone: "Asia/Tokyo"},
		{Name: "n", Algorithm: penstock.RollingWindow, Count: 10, Period: time.Minute, Buckets: 7},
	} {
		identity := identify(other)
		if slices.Contains(all, identity) {
			t.Errorf("%s: its identity %s is not unique", other, identity)
		}
		all = append(all, identity)
	}
}

// Two limits with one identity by hash collision are detected.
func TestLimitIdentityCollisionFails(t *testing.T) {
	var c limitCache
	first, err := c.get(penstock.PerSecond(1))
	if err != nil {
		t.Fatal(err)
	}
	second, err := compileLimit(penstock.PerSecond(2))
	if err != nil {
		t.Fatal(err)
	}
	second.identity = first.identity
	if err := c.claimIdentity(second); err == nil || !strings.Contains(err.Error(), "another name") {
		t.Errorf("a second limit of identity %s: got error %v, want one that asks for another name", first.identity, err)
	}
	if err := c.claimIdentity(first); err != nil {
		t.Errorf("the first limit of identity %s again: %v", first.identity, err)
	}
}
