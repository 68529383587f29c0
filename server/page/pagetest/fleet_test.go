package pagetest_test

import (
	"fmt"
	"testing"
)

// A daemon with a home region shows what its global limits cost.
func TestLiveShowsHome(t *testing.T) {
	home := fmt.Sprintf("redis://%s/%d", redis.Addr, databases.Add(1))
	rules := "domain: shop\ndescriptors: [{key: api, limit: 6000/1h, global: {}}]\n"
	d := startDaemon(t, map[string]string{"shop.yaml": rules}, "--home", home, "--regions", "2", "--home-timeout", "10s")
	d.take(t, "api", "a")
	tb := openTab(t)
	tb.show(t, d, "live")
	tb.waitUntil(t, "home is up and was asked once", "/Home region ?up.*from pools since the start ?1\\D.*asked for ?1: 0 short, 0 failed/s.test(document.body.textContent)")
}

// The page of one daemon shows all daemons on the same Redis, and their sum.
func TestLiveShowsAllDaemons(t *testing.T) {
	store := []string{"--store", fmt.Sprintf("redis://%s/%d", redis.Addr, databases.Add(1)), "--redis-timeout", "10s"}
	files := map[string]string{"shop.yaml": shopRules}
	a := startDaemon(t, files, append(store, "--name", "alpha")...)
	b := startDaemon(t, files, append(store, "--name", "beta")...)
	for i := range 7 {
		a.take(t, "api", fmt.Sprint("a", i))
	}
	for i := range 5 {
		b.take(t, "api", fmt.Sprint("b", i))
	}
	tb := openTab(t)
	tb.show(t, a, "live")
	tb.waitUntil(t, "the daemon shows its own", "document.querySelector('[data-total=allowed]').textContent === '7'")
	tb.click(t, "input[value=all]")
	tb.waitUntil(t, "both daemons are shown with their sum",
		"document.querySelectorAll('.daemons tbody tr').length === 2 && document.querySelector('[data-total=allowed]').textContent === '12'")
	tb.waitUntil(t, "the link carries the scope", "location.hash.includes('scope=all')")
}
