package overrides

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
)

var harsh = &rules.Penalty{After: 100, Within: time.Minute, For: time.Minute, UpTo: time.Hour}

// A flood of keys that are denied once or twice must neither hide one that is denied all the
// time, nor make the table grow.
func TestPenaltyFindsOffenderInAFlood(t *testing.T) {
	b := newSet(t)
	found := false
	for i := 0; i < 200_000 && !found; i++ {
		if b.CountDenial("r", fmt.Sprint("k=flood", i), harsh); i%10 == 0 {
			b.CountDenial("r", "k=offender", harsh)
		}
		found = len(b.penalties.queue) > 0
	}
	if !found {
		t.Fatal("the offender was not found")
	}
	if o := <-b.penalties.queue; o.key != "k=offender" {
		t.Errorf("found %s", o.key)
	}
}

// However keys compete for places, none is banned before it was denied as often as the
// penalty says.
func TestPenaltyNeverCountsTooMuch(t *testing.T) {
	b, rng := newSet(t), rand.New(rand.NewPCG(3, 4))
	q, p := &b.penalties, &rules.Penalty{After: 3, Within: time.Minute, For: time.Minute, UpTo: time.Hour}
	since := map[string]int{}
	bans := 0
	for i := range 50_000 {
		key := fmt.Sprint("k=", rng.IntN(20_000))
		since[key]++
		if q.count("r", key, p, int64(i)) {
			bans++
			if since[key] < 3 {
				t.Fatalf("%s was banned after %d denials", key, since[key])
			}
			since[key] = 0
		}
	}
	if bans == 0 {
		t.Error("none was banned")
	}
}

func TestPenaltyCountsWithinItsWindow(t *testing.T) {
	b := newSet(t)
	q, p := &b.penalties, &rules.Penalty{After: 3, Within: time.Minute, For: time.Minute, UpTo: time.Hour}
	second := int64(time.Second)
	for i, c := range []struct {
		at   int64
		want bool
	}{{0, false}, {30, false}, {61, false}, {62, false}, {63, true}, {64, false}, {5, false}} {
		if got := q.count("r", "k", p, c.at*second); got != c.want {
			t.Errorf("denial %d at %d s: got %t, want %t", i, c.at, got, c.want)
		}
	}
}

func TestPenaltyLeavesRoomForOperators(t *testing.T) {
	b := newSet(t)
	b.penalties.bans = MaxOverrides / 2
	o := offence{rule: "r", key: "k=1", penalty: *harsh}
	if b.ban(t.Context(), &o); patternOf(b, "k=1") != "" || b.Skipped() != 1 {
		t.Error("a ban was added to as many as penalties may set")
	}
	mustPut(t, b, ban("k=1"))
}

func TestPenaltyDoesNotCountBansOfOperators(t *testing.T) {
	b := newSet(t)
	b.max = 4
	for i := range 2 {
		mustPut(t, b, ban(fmt.Sprint("k=operator", i)))
	}
	for i := range 3 {
		b.ban(t.Context(), &offence{rule: "r", key: fmt.Sprint("k=", i), penalty: *harsh})
	}
	if patternOf(b, "k=0") == "" || patternOf(b, "k=1") == "" || patternOf(b, "k=2") != "" || b.Skipped() != 1 {
		t.Errorf("%d of 3 skipped, want the last: half of 4 are left to penalties", b.Skipped())
	}
}

// Bans that have ended do not keep others from being banned.
func TestPenaltyEvictsBansThatHaveEnded(t *testing.T) {
	now := time.Now()
	var log strings.Builder
	b, err := Open(&Options{Now: func() time.Time { return now }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	b.max = 20
	offend := func(key string) bool {
		b.ban(t.Context(), &offence{rule: "r", key: key, penalty: *harsh})
		return patternOf(b, key) != ""
	}
	for i := range 10 {
		if !offend(fmt.Sprint("k=", i)) {
			t.Fatalf("ban %d was not set", i)
		}
	}
	if offend("k=full") || offend("k=more") || b.Skipped() != 2 || strings.Count(log.String(), "too many bans") != 1 {
		t.Errorf("with 10 of 10 bans in force: %d skipped, the log says %s", b.Skipped(), &log)
	}
	now = now.Add(harsh.For + time.Second)
	if !offend("k=later") || b.Count(Banned) != 1 {
		t.Errorf("with 10 bans that have ended no other was set, there are %d", b.Count(Banned))
	}
}

func TestPenaltyQueueIsBounded(t *testing.T) {
	b := newSet(t)
	once := &rules.Penalty{After: 1, Within: time.Minute, For: time.Minute, UpTo: time.Hour}
	for i := range maxQueued + 5 {
		b.CountDenial("r", fmt.Sprint("k=", i), once)
	}
	if len(b.penalties.queue) != maxQueued || b.Skipped() != 5 {
		t.Errorf("%d queued, %d skipped", len(b.penalties.queue), b.Skipped())
	}
}

func TestBanLengthDoubles(t *testing.T) {
	p := &rules.Penalty{For: 10 * time.Minute, UpTo: time.Hour}
	for n, want := range map[int]time.Duration{1: 10 * time.Minute, 2: 20 * time.Minute, 3: 40 * time.Minute, 4: time.Hour, maxStrikes: time.Hour} {
		if got := banLength(p, n); got != want {
			t.Errorf("ban %d: got %v, want %v", n, got, want)
		}
	}
}

// A client that chooses its key must not get a whole network banned, or all keys.
func TestPenaltyBansNothingButTheKey(t *testing.T) {
	for _, key := range []string{"ip=0.0.0.0/0", "ip=::/0", "ip=203.0.113.0/24", "ip=*"} {
		b := newSet(t)
		b.ban(t.Context(), &offence{rule: "r", key: key, penalty: *harsh})
		if patternOf(b, key) == "" {
			t.Errorf("%s is not banned", key)
		}
		for _, other := range []string{"ip=203.0.113.7", "ip=2001:db8::1", "ip=10.0.0.0/8"} {
			if got := patternOf(b, other); got != "" {
				t.Errorf("%s was denied too often, and %s is banned by %s", key, other, got)
			}
		}
	}
}
