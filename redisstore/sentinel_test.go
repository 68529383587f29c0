package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// The primary is killed under load and the store finds the new one. Writes that the
// replica had not received can be admitted again.
func TestSentinelCrashAdmitsOneMoreBurst(t *testing.T) {
	t.Parallel()
	w := redistest.StartSentinelGroup(t)
	c := startLoad(t, openURL(t, w.URL(), shortTimeout))
	c.waitAnswers(t, 2000)
	old := w.Primary(t)
	old.Kill()
	w.AllowFailover(t)
	killed := time.Now()
	waitFor(t, "the sentinels elect a new primary", func() bool { return w.Primary(t) != old })
	c.waitAnswers(t, 2000)
	t.Logf("answered again %v after the primary was killed", time.Since(killed).Round(100*time.Millisecond))
	c.closeAndDrain(t)
	c.check(t, 0, 2*burst)
	if c.failed.Load() == 0 || infoField(t, w.Primary(t), "role") != "master" {
		t.Errorf("%d calls failed, and %s is a %s: there was no failover",
			c.failed.Load(), w.Primary(t).Addr, infoField(t, w.Primary(t), "role"))
	}
	checkExpiry(t, w.Primary(t))
}

// In a planned failover the old primary stays up as a replica.
func TestSentinelPlannedFailoverHidesReadOnly(t *testing.T) {
	t.Parallel()
	w := redistest.StartSentinelGroup(t)
	c := startLoad(t, openURL(t, w.URL(), longTimeout))
	c.waitAnswers(t, 1000)
	old := w.Primary(t)
	var begun time.Time
	waitFor(t, "the sentinels have a new primary", func() bool {
		if w.Primary(t) != old {
			return true
		}
		// A sentinel gives up on a slow replica; then the failover is requested again.
		if time.Since(begun) > 10*time.Second {
			if _, err := w.Sentinels[0].Command("SENTINEL", "FAILOVER", redistest.MasterName); err == nil {
				begun = time.Now()
			}
		}
		return false
	})
	c.waitAnswers(t, 1000)
	c.closeAndDrain(t)
	c.check(t, 0, 2*burst)
	for _, err := range c.failures {
		if strings.Contains(err.Error(), "READONLY") {
			t.Errorf("a caller got an error that a retry could have avoided: %v", err)
		}
	}
	checkExpiry(t, w.Primary(t))
}

func TestOpenUnknownSentinelMasterFails(t *testing.T) {
	t.Parallel()
	server := redistest.StartForTest(t, redistest.Options{Sentinel: "bind 127.0.0.1\n"})
	err := openError(t, "redis-sentinel://"+server.Addr+"/unknown")
	if !strings.Contains(err.Error(), server.Addr) {
		t.Errorf("an unknown master: got %v, want it to name the sentinel", err)
	}
}
