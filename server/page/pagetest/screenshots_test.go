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

// screenshots are the views in docs/images, each with its parameters and its height.
var screenshots = []struct {
	view       string
	parameters []string
	height     int64
}{
	{"live", nil, 1070},
	{"keys", []string{"key", "user=7", "keyrule", "shop/user"}, 900},
	{"rules", []string{"domain", "shop", "entries", "path=/login\nremote_address=203.0.113.9"}, 830},
	{"simulator", []string{"limit", "10/1s", "traffic", "edge", "lane", "sliding-log", "request", "11"}, 870},
}

// TestScreenshots writes docs/images/page-*.webp, if the flag -page.update is set.
func TestScreenshots(t *testing.T) {
	if !*update {
		t.Skip("without -page.update, the screenshots stay as they are")
	}
	d := startDaemon(t, map[string]string{"rules.yaml": demoRules})
	stop := make(chan struct{})
	defer close(stop)
	go demoTraffic(d.url(t, "http")+"/v1/take", stop)
	<-time.After(2 * time.Minute) // the span of the chart
	d.call(t, "DELETE", "/v1/keys?rule=shop/user&key=42", nil)
	d.call(t, "DELETE", "/v1/keys?rule=shop/user&key=42&reason=OPS-311:+retried+during+our+outage", nil)
	d.call(t, "POST", "/v1/keys?rule=shop/phone&key=13800138000&units=2&reason=SMS+provider+lost+two+codes", nil)
	tb := openTab(t)
	for _, s := range screenshots {
		must(tb.ctx, t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1280, Height: s.height, DeviceScaleFactor: 1.5})
		tb.show(t, d, s.view, s.parameters...)
		tb.waitUntil(t, "the daemon is up", "document.getElementById('status').dataset.state === 'up'")
		if s.view == "keys" {
			tb.waitUntil(t, "the key is inspected", "document.querySelector('.decision')")
		}
		quality := int64(82)
		shot := must(tb.ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: &quality})
		if len(shot.Data) > 150<<10 {
			t.Errorf("%s: %d bytes, want at most 150 KB", s.view, len(shot.Data))
		}
		if err := os.WriteFile(filepath.Join("../../../docs/images", "page-"+s.view+".webp"), shot.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
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
