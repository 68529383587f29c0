package lineage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// go-zero's period limit, and the first redis_rate.

func (tr *rivalTest) goZero(quota int64, seconds int64) int64 {
	tr.Helper()
	code, err := strconv.ParseInt(tr.runRival("go-zero-period", []string{tr.key("period")}, quota, seconds), 10, 64)
	if err != nil {
		tr.Fatal(err)
	}
	return code
}

// Replies of go-zero's script.
const (
	overQuota = 0
	allowed   = 1
	hitQuota  = 2
)

// asGoZero converts a decision to a reply of go-zero.
func asGoZero(d penstock.Decision) int64 {
	switch {
	case !d.Allowed:
		return overQuota
	case d.Remaining == 0:
		return hitQuota
	}
	return allowed
}

// No step lands on the millisecond in which a window ends, because Redis still has the
// expiring key then.
func TestGoZeroPeriodAgrees(t *testing.T) {
	tr := newRivalTest(t)
	l := fixedWindow(5, 10*time.Second)
	seen := map[int64]int{}
	for i := range 400 {
		got, want := asGoZero(tr.take(l)), tr.goZero(5, 10)
		if got != want {
			t.Fatalf("call %d, at %v: the store says %d, the script %d", i, tr.now.Format("15:04:05.000"), got, want)
		}
		seen[got]++
		tr.wait(time.Duration(tr.random.IntN(400)) * 7 * time.Millisecond)
	}
	if len(seen) != 3 {
		t.Errorf("the replies were %v, want all three kinds", seen)
	}
}

// alignedSeconds returns the length of go-zero's aligned window by the clock of a caller
// in a zone.
func alignedSeconds(now time.Time, period int64) int64 {
	_, offset := now.Zone()
	return period - (now.Unix()+int64(offset))%period
}

const day = 86_400

func perDay(count int64, zone string) penstock.Limit {
	return penstock.Limit{Algorithm: penstock.FixedWindow, Count: count, Align: penstock.AlignDay, Zone: zone}
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestGoZeroAlignAgreesWithoutDST(t *testing.T) {
	tr := newRivalTest(t)
	l, z := perDay(5, "Asia/Shanghai"), zone(t, "Asia/Shanghai")
	tr.set(time.Date(2026, time.March, 2, 15, 59, 59, 0, time.UTC)) // a second before midnight there
	for i := range 300 {
		got, want := asGoZero(tr.take(l)), tr.goZero(5, alignedSeconds(tr.now.In(z), day))
		if got != want {
			t.Fatalf("call %d, at %v: the store says %d, the script %d", i, tr.now.In(z), got, want)
		}
		tr.wait(time.Duration(2+2*tr.random.IntN(7200)) * time.Second)
	}
}

func TestGoZeroAlignLateAfterDSTChange(t *testing.T) {
	tr := newRivalTest(t)
	l, z := perDay(1, "Europe/Berlin"), zone(t, "Europe/Berlin")
	tr.set(time.Date(2026, time.March, 29, 0, 30, 0, 0, z))
	tr.checkSame("the first on the day on which summer time begins",
		countAdmitted(1, func() bool { return tr.goZero(1, alignedSeconds(tr.now.In(z), day)) != overQuota }),
		countAdmitted(1, func() bool { return tr.take(l).Allowed }), 1)
	tr.set(time.Date(2026, time.March, 30, 0, 30, 0, 0, z))
	tr.checkDiffer("the first on the day after",
		countAdmitted(1, func() bool { return tr.goZero(1, alignedSeconds(tr.now.In(z), day)) != overQuota }), 0,
		countAdmitted(1, func() bool { return tr.take(l).Allowed }), 1)
}

func TestGoZeroAlignDependsOnFirstCaller(t *testing.T) {
	tr := newRivalTest(t)
	l := perDay(1, "Asia/Shanghai")
	tr.set(time.Date(2026, time.March, 2, 15, 0, 0, 0, time.UTC))
	tr.goZero(1, alignedSeconds(tr.now.UTC(), day)) // a caller in UTC
	tr.take(l)
	tr.wait(2 * time.Hour) // past midnight in Shanghai
	tr.checkDiffer("a new day in Shanghai, after a caller elsewhere",
		countAdmitted(1, func() bool {
			return tr.goZero(1, alignedSeconds(tr.now.In(zone(t, "Asia/Shanghai")), day)) != overQuota
		}), 0,
		countAdmitted(1, func() bool { return tr.take(l).Allowed }), 1)
}

func TestGoZeroQuotaOfOneNeverReportsHitQuota(t *testing.T) {
	tr := newRivalTest(t)
	got, store := tr.goZero(1, 10), asGoZero(tr.take(fixedWindow(1, 10*time.Second)))
	if got != allowed || store != hitQuota {
		t.Errorf("the only one of 1: the script says %d, want %d; the store says %d, want %d", got, allowed, store, hitQuota)
	}
}

func TestGoZeroZeroQuotaAdmitsOne(t *testing.T) {
	tr := newRivalTest(t)
	tr.checkDiffer("5 calls, 0 in 10 s",
		countAdmitted(5, func() bool { return tr.goZero(0, 10) != overQuota }), 1,
		countAdmitted(5, func() bool { return tr.take(fixedWindow(0, 10*time.Second)).Allowed }), 0)
}

func TestGoZeroKeyWithoutExpiryDeniesForever(t *testing.T) {
	tr := newRivalTest(t)
	l := fixedWindow(2, 10*time.Second)
	tr.goZero(2, 10)
	tr.take(l)
	own := tr.storeKeys()[0]
	for _, key := range []string{tr.key("period"), own} {
		tr.command("INCRBY", key, 5)
		tr.command("PERSIST", key)
	}
	tr.wait(time.Hour)
	if code := tr.goZero(2, 10); code != overQuota || tr.ttl(tr.key("period")) >= 0 {
		t.Errorf("an hour later, 2 in 10 s: the script says %d, and its key lives for %v", code, tr.ttl(tr.key("period")))
	}
	_, err := tr.store.Take(context.Background(), penstock.Request{Key: "key", Limit: l, Cost: 1})
	if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), own) {
		t.Errorf("a key without expiry: got error %v, want one that names %s", err, own)
	}
	tr.command("DEL", own)
	if d := tr.take(l); !d.Allowed {
		t.Errorf("after the key was deleted: %+v", d)
	}
}

func TestGoZeroZeroWindowAdmitsEverything(t *testing.T) {
	tr := newRivalTest(t)
	if n := countAdmitted(6, func() bool { return tr.goZero(2, 0) != overQuota }); n != 6 {
		t.Errorf("6 calls, 2 in no time: the script grants %d, want 6", n)
	}
	for _, period := range []time.Duration{0, -time.Second} {
		_, err := tr.store.Take(context.Background(), penstock.Request{Key: "key", Limit: fixedWindow(2, period), Cost: 1})
		if !errors.Is(err, penstock.ErrBadLimit) {
			t.Errorf("a period of %v: got error %v, want ErrBadLimit", period, err)
		}
	}
}

func TestGoZeroCountsDeniedRequests(t *testing.T) {
	tr := newRivalTest(t)
	l := fixedWindow(2, 10*time.Second)
	tr.checkSame("100 calls, 2 in 10 s",
		countAdmitted(100, func() bool { return tr.goZero(2, 10) != overQuota }),
		countAdmitted(100, func() bool { return tr.take(l).Allowed }), 2)
	if n := tr.number("GET", tr.key("period")); n != 100 {
		t.Errorf("the script has counted to %d, want 100", n)
	}
	if n := tr.number("GET", tr.storeKeys()[0]); n != 2 {
		t.Errorf("the store has counted to %d, want 2", n)
	}

	tr.command("DECRBY", tr.key("period"), 1)
	tr.request(penstock.Request{Limit: l, Cost: -1})
	tr.checkDiffer("after a refund of one",
		countAdmitted(5, func() bool { return tr.goZero(2, 10) != overQuota }), 0,
		countAdmitted(5, func() bool { return tr.take(l).Allowed }), 1)
}

// redisRate calls the first redis_rate at a time by the caller's clock.
func (tr *rivalTest) redisRate(at time.Time, count, seconds, cost int64) (ok bool, delay time.Duration) {
	tr.Helper()
	slot := at.Unix() / seconds
	used := tr.runRival("redis-rate-slot", []string{tr.key(fmt.Sprintf("slot:%d", slot))}, cost, seconds)
	n, err := strconv.ParseInt(used, 10, 64)
	if err != nil {
		tr.Fatal(err)
	}
	return n <= count, time.Duration((slot+1)*seconds-at.Unix()) * time.Second
}

func onTheClock(count int64, period time.Duration) penstock.Limit {
	return penstock.Limit{Algorithm: penstock.FixedWindow, Count: count, Period: period, Align: penstock.AlignClock}
}

func TestRedisRateAgreesOnSynchronizedClocks(t *testing.T) {
	tr := newRivalTest(t)
	l := onTheClock(5, 10*time.Second)
	for i := range 400 {
		d := tr.take(l)
		ok, delay := tr.redisRate(tr.now, 5, 10, 1)
		if d.Allowed != ok || !ok && d.RetryAfter != delay {
			t.Fatalf("call %d, at %v: the store returns %+v, redis_rate %v after %v", i, tr.now.Format("15:04:05"), d, ok, delay)
		}
		tr.wait(time.Duration(tr.random.IntN(3)) * time.Second)
	}
}

func TestRedisRateSkewedClocksUseSeparateWindows(t *testing.T) {
	tr := newRivalTest(t)
	l := onTheClock(5, time.Second)
	rival, store := 0, 0
	for _, skew := range []time.Duration{0, 2 * time.Second} {
		for range 5 {
			ok, _ := tr.redisRate(tr.now.Add(skew), 5, 1, 1)
			rival += countAdmitted(1, func() bool { return ok })
			store += countAdmitted(1, func() bool { return tr.take(l).Allowed })
		}
	}
	tr.checkDiffer("5 calls by each of two clients 2 s apart, 5 a second", rival, 10, store, 5)
}

func TestRedisRateCountsDeniedRequests(t *testing.T) {
	tr := newRivalTest(t)
	l := onTheClock(5, 10*time.Second)
	if ok, _ := tr.redisRate(tr.now, 5, 10, 6); ok || tr.request(penstock.Request{Limit: l, Cost: 6}).Allowed {
		t.Error("6 of 5 were granted")
	}
	ok, _ := tr.redisRate(tr.now, 5, 10, 1)
	tr.checkDiffer("one after 6 of 5 were denied", countAdmitted(1, func() bool { return ok }), 0,
		countAdmitted(1, func() bool { return tr.take(l).Allowed }), 1)
}

// The offset of Flink's tumbling windows: windows of a day that begin at eight.
func TestAlignedWindowOffset(t *testing.T) {
	tr := newRivalTest(t)
	l := onTheClock(1, 24*time.Hour)
	l.Offset = 8 * time.Hour
	for _, step := range []struct {
		at   string
		want bool
	}{
		{"2026-03-02T07:00:00Z", true},
		{"2026-03-02T07:59:59Z", false},
		{"2026-03-02T08:00:00Z", true},
		{"2026-03-03T00:00:00Z", false},
		{"2026-03-03T07:59:59Z", false},
		{"2026-03-03T08:00:00Z", true},
	} {
		at, err := time.Parse(time.RFC3339, step.at)
		if err != nil {
			t.Fatal(err)
		}
		tr.set(at)
		if d := tr.take(l); d.Allowed != step.want {
			t.Errorf("%s at %s: %+v, want allowed %v", l, step.at, d, step.want)
		}
	}
}

// envoyproxy/ratelimit adds jitter to the expiry of windows that end together.
func TestAlignedWindowExpiryHasJitter(t *testing.T) {
	tr := newRivalTest(t)
	lives := map[time.Duration]bool{}
	for i := range 60 {
		tr.request(penstock.Request{Key: fmt.Sprint(i), Limit: onTheClock(5, time.Minute), Cost: 1})
	}
	for _, name := range tr.storeKeys() {
		life := tr.ttl(name)
		if lives[life] = true; life < time.Minute || life > 66*time.Second {
			t.Errorf("the key of a window that ends in a minute lives for %v, want up to a tenth more", life)
		}
	}
	if len(lives) < 3 {
		t.Errorf("60 windows of a minute expire at only %d instants", len(lives))
	}
}
