package storetest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// testKeys takes the only unit of many keys that resemble each other. It fails if two
// of them share state.
func testKeys(t *testing.T, open Open, supported []penstock.Algorithm) {
	store := openAt(t, open, &Clock{}, noon)
	seen := map[penstock.Request]bool{}
	for _, r := range similarRequests(overTime(t, supported)[0]) {
		if !slices.Contains(supported, r.Limit.Algorithm) {
			continue
		}
		if seen[r] {
			t.Fatalf("duplicate request %+v", r)
		}
		seen[r] = true
		d, err := store.Take(context.Background(), r)
		if err != nil || !d.Allowed || d.Remaining != 0 {
			t.Errorf("limit %q, key %q, id %q: got %s, %v, want the only unit: another key has taken it",
				r.Limit, truncate(r.Key), r.ID, decisionText(d), err)
		}
	}
}

func truncate(key string) string { return key[:min(len(key), 40)] }

// similarRequests are requests with different state that differ by little: by bytes of
// their keys, and by where the name of the limit ends and the key or the ID begins. Most are of one
// algorithm.
func similarRequests(most penstock.Algorithm) []penstock.Request {
	limit := penstock.PerHour(1).WithAlgorithm(most)
	var rs []penstock.Request
	for _, key := range []string{
		"a", "A", "a ", " a", "a\x00", "\x00a", "a\n", "{a}", "{a}b", "a{b}", "{}a", "a:b", "a:b:c", ":", "*", "%s",
		"ä", "a\u0308", "\xff", "\xfe", "a\x00b", "0", "00", "-1", strings.Repeat("a", 300), strings.Repeat("a", 301),
	} {
		rs = append(rs, penstock.Request{Key: key, Limit: limit, Cost: 1})
	}
	for _, named := range [][2]string{
		{"n", "k"}, {"n:k", "k"}, {"n", "k:k"}, {"n:k:k", ""}, {"nk", ""}, {"n", "kk"}, {"nk", "k"}, {"{n}", "k"}, {"n ", "k"},
	} {
		rs = append(rs, penstock.Request{Key: named[1] + "key", Limit: limit.WithName(named[0]), Cost: 1})
	}
	for _, a := range algorithms {
		for _, l := range []penstock.Limit{limit.WithAlgorithm(a), limit.WithAlgorithm(a).WithName("name")} {
			r := penstock.Request{Key: "one", Limit: l, Cost: 1}
			if needsID(l) {
				r.ID = "id"
			}
			rs = append(rs, r)
		}
	}
	for _, l := range []penstock.Limit{
		{Count: 1, Period: 2 * time.Hour, Algorithm: most},
		{Count: 1, Period: time.Minute, Algorithm: most},
		{Count: 1, Period: time.Hour, Algorithm: penstock.RollingWindow, Buckets: 5},
		{Count: 1, Period: time.Hour, Algorithm: penstock.FixedWindow, Align: penstock.AlignClock},
		{Count: 1, Period: time.Hour, Algorithm: penstock.FixedWindow, Align: penstock.AlignClock, Offset: time.Minute},
		{Count: 1, Algorithm: penstock.FixedWindow, Align: penstock.AlignDay},
		{Count: 1, Algorithm: penstock.FixedWindow, Align: penstock.AlignDay, Zone: "Asia/Shanghai"},
		{Count: 1, Algorithm: penstock.FixedWindow, Align: penstock.AlignWeek},
	} {
		rs = append(rs, penstock.Request{Key: "one", Limit: l, Cost: 1})
	}
	for _, id := range [][2]string{{"i", "d-e"}, {"i-d", "e"}, {"i", "d:f"}, {"i:d", "f"}, {"i", "dg"}, {"id", "g"}} {
		rs = append(rs,
			penstock.Request{Key: id[1], Limit: limit, Cost: 1, ID: id[0]},
			penstock.Request{Key: id[1], Limit: limit.WithAlgorithm(penstock.Concurrent), Cost: 1, ID: id[0]})
	}
	return rs
}
