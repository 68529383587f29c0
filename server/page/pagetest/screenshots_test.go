package pagetest_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
)

const demoRules = `
domain: shop
descriptors:
  - key: user
    limit: "10/1m burst=5"
    candidate: "6/1m burst=3"
  - key: phone
    limit: "5/day zone=Asia/Shanghai fixed-window"
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        on_store_failure: deny
        limit: "3/1m sliding-log"
  - key: path
    value: /search
    limit: "200/1s"
  - key: tenant
    shadow_mode: true
    limit: "600/1h"
`

type screenshot struct {
	view       string
	parameters []string
	height     int64
	inChinese  bool
}

// screenshots are the views in docs/images; those that README.zh-CN.md shows are in docs/images/zh-CN, too.
var screenshots = []screenshot{
	{"live", nil, 1070, true},
	{"keys", []string{"key", "user=7", "keyrule", "shop/user"}, 900, false},
	{"rules", []string{"domain", "shop", "entries", "path=/login\nremote_address=203.0.113.9"}, 1080, false},
	{"simulator", []string{"limit", "10/1s", "traffic", "edge", "lane", "sliding-log", "request", "11"}, 870, true},
}

// TestScreenshots writes docs/images/page-*.webp and docs/images/zh-CN/page-*.webp, if the flag -page.update is set.
func TestScreenshots(t *testing.T) {
	if !*update {
		t.Skip("without -page.update, the screenshots stay as they are")
	}
	d := startDaemon(t, map[string]string{"rules.yaml": demoRules}, "--name", "edge-1",
		"--store", fmt.Sprintf("redis://%s/%d", redis.Addr, databases.Add(1)), "--redis-timeout", "10s")
	stop := make(chan struct{})
	defer close(stop)
	go demoTraffic(d.url(t, "http")+"/v1/take", stop)
	<-time.After(2 * time.Minute) // the span of the chart
	d.call(t, "DELETE", "/v1/keys?rule=shop/user&key=42", nil)
	d.call(t, "DELETE", "/v1/keys?rule=shop/user&key=42&reason=OPS-311:+retried+during+our+outage", nil)
	d.call(t, "POST", "/v1/keys?rule=shop/phone&key=13800138000&units=2&reason=SMS+provider+lost+two+codes", nil)
	tb := openReleased(t)
	for _, s := range screenshots {
		tb.captureView(t, d, s, "")
	}
	chinese := openReleased(t)
	chinese.speak(t, "zh-CN")
	for _, s := range screenshots {
		if s.inChinese {
			chinese.captureView(t, d, s, "zh-CN")
		}
	}
	tb.setHeight(t, 620)
	tb.show(t, d, "keys", "key", "user=7", "keyrule", "shop/user")
	tb.ask(t, ".acts button[name=ban]")
	tb.write(t, "dialog input[name=reason]", "OPS-312: scrapes the catalogue")
	tb.capture(t, "", "question")
	tb.click(t, "dialog button[name=no]")
	tb.setHeight(t, 900)
	tb.show(t, d, "simulator", "limit", "90/1m")
	tb.drop(t, "access.log", demoLog())
	tb.waitForLog(t, "limit=90%2F1m&by=remote_address")
	tb.capture(t, "", "log")
}

// openReleased opens a tab that shows the version of a release, which a binary built here has not.
func openReleased(t *testing.T) *tab {
	t.Helper()
	tb := openTab(t)
	must(tb.ctx, t, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `
		const parse = JSON.parse;
		JSON.parse = (...text) => { const value = parse(...text); if (value?.version) value.version = 'v0.1.0'; return value; };`})
	return tb
}

func (tb *tab) setHeight(t *testing.T, height int64) {
	t.Helper()
	must(tb.ctx, t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1280, Height: height, DeviceScaleFactor: 1.5})
}

// captureView shows a view, and writes it to a folder of docs/images.
func (tb *tab) captureView(t *testing.T, d *daemon, s screenshot, folder string) {
	t.Helper()
	tb.setHeight(t, s.height)
	tb.show(t, d, s.view, s.parameters...)
	tb.waitUntil(t, "the daemon is up", "document.getElementById('status').dataset.state === 'up'")
	if s.view == "keys" {
		tb.waitUntil(t, "the key is inspected", "document.querySelector('.decision')")
	}
	tb.capture(t, folder, s.view)
}

// capture writes what the tab shows to a folder of docs/images.
func (tb *tab) capture(t *testing.T, folder, name string) {
	t.Helper()
	quality := int64(82)
	shot := must(tb.ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: &quality})
	if len(shot.Data) > 150<<10 {
		t.Errorf("%s: %d bytes, want at most 150 KB", name, len(shot.Data))
	}
	if err := os.WriteFile(filepath.Join("../../../docs/images", folder, "page-"+name+".webp"), shot.Data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// demoLog is an access log of half an hour: many clients, and a scraper that comes and goes.
func demoLog() string {
	var b strings.Builder
	random := rand.New(rand.NewPCG(7, 8))
	clients := rand.NewZipf(random, 1.2, 4, 200)
	for second := range 1800 {
		at := time.Date(2026, 3, 2, 9, 0, second, 0, time.UTC).Format("02/Jan/2006:15:04:05 -0700")
		line := func(client string) {
			fmt.Fprintf(&b, "%s - - [%s] \"GET /catalogue HTTP/1.1\" 200 512 \"-\" \"-\"\n", client, at)
		}
		for range 3 + random.IntN(3) {
			line(fmt.Sprintf("198.51.100.%d", clients.Uint64()))
		}
		for i := 0; second/300%2 == 1 && i < 5; i++ {
			line("203.0.113.9")
		}
	}
	return b.String()
}

// demoTraffic sends requests whose rate rises and falls, some of which are denied, until
// the channel is closed.
func demoTraffic(url string, stop <-chan struct{}) {
	random := rand.New(rand.NewPCG(7, 7))
	few := rand.NewZipf(random, 1.3, 2, 60)
	for begin := time.Now(); ; {
		wave := 1.3 - math.Sin(time.Since(begin).Seconds()/7)
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(wave * float64(5*time.Millisecond))):
		}
		if r, err := http.Post(url, "application/json", strings.NewReader(demoRequest(random.Float64(), few.Uint64()))); err == nil {
			_ = r.Body.Close()
		}
	}
}

// demoRequest returns a request of a kind that a number from 0 to 1 chooses.
func demoRequest(kind float64, n uint64) string {
	const one = `{"domain":"shop","descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`
	switch {
	case kind < 0.4:
		return fmt.Sprintf(one, "path", "/search")
	case kind < 0.7:
		return fmt.Sprintf(one, "user", fmt.Sprint(n+1))
	case kind < 0.8:
		return fmt.Sprintf(one, "tenant", []string{"acme", "globex", "initech", "umbrella"}[n%4])
	case kind < 0.86:
		return fmt.Sprintf(one, "phone", fmt.Sprintf("138001380%02d", n))
	case kind < 0.93:
		return fmt.Sprintf(`{"domain":"shop","descriptors":[{"entries":[{"key":"path","value":"/login"},{"key":"remote_address","value":"203.0.113.%d"}]}]}`, n+1)
	}
	return fmt.Sprintf(`{"key":"export:%d","limit":"5/1m"}`, n)
}
