package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// byRules returns the body of a request with one descriptor for each key.
func byRules(domain string, keys ...string) string {
	var ds []string
	for _, key := range keys {
		ds = append(ds, fmt.Sprintf(`{"entries":[{"key":%q,"value":"v"}]}`, key))
	}
	return fmt.Sprintf(`{"domain":%q,"descriptors":[%s]}`, domain, strings.Join(ds, ","))
}

// wantMetrics fails the test unless the metrics have all lines.
func (d *daemon) wantMetrics(lines ...string) {
	d.t.Helper()
	_, text := get(d.t, "http://"+d.addr("admin")+"/metrics")
	for _, want := range lines {
		if !slices.Contains(strings.Split(text, "\n"), want) {
			d.t.Errorf("the metrics lack %s:\n%s", want, penstockMetrics(text))
		}
	}
}

// wantLog fails the test unless the log has each text so many times.
func (d *daemon) wantLog(times int, texts ...string) {
	d.t.Helper()
	for _, text := range texts {
		if n := strings.Count(d.log.String(), text); n != times {
			d.t.Errorf("the log has %d times %q, want %d:\n%s", n, text, times, d.log)
		}
	}
}

func TestUnmatchedRequestsAreCountedAndLoggedOnce(t *testing.T) {
	d := start(t, map[string]string{"rules": write(t, "rules.yaml", shopRules)})
	for range 2 {
		for _, body := range []string{
			byRules("shpo", "user"), byRules("shpo\nforged=line", "user"), byRules("shop", "usr"), byRules("shop", "user", "usr2"),
		} {
			if status, answer := post(t, d.addr("http"), body); status != 200 {
				t.Errorf("%s: %d %s", body, status, answer)
			}
		}
	}
	d.wantMetrics(`penstock_unmatched_requests_total{domain="shop"} 2`, `penstock_unmatched_requests_total{domain=""} 4`)
	d.wantLog(1,
		`msg="no rules for this domain" domain=shpo nearest=shop setting="--unmatched=allow"`,
		`msg="no rules for this domain" domain="shpo\nforged=line" nearest=shop`,
		`msg="no rule has these keys" domain=shop keys=usr nearest=user setting="--unmatched=allow"`,
		`keys=usr2`)
}

// Callers choose domains and keys, so neither metrics nor log may grow with their number.
func TestUnmatchedNamesOfCallersAreBounded(t *testing.T) {
	d := start(t, map[string]string{"rules": write(t, "rules.yaml", shopRules)})
	for i := range 300 {
		post(t, d.addr("http"), byRules(fmt.Sprintf("domain%d%s", i, strings.Repeat("x", 1000)), "user"))
	}
	d.wantMetrics(`penstock_unmatched_requests_total{domain=""} 300`)
	if n := strings.Count(d.log.String(), "no rules for this domain"); n == 0 || n > 100 {
		t.Errorf("%d domains were logged, want from 1 to 100", n)
	}
	if strings.Contains(d.log.String(), strings.Repeat("x", 250)) {
		t.Error("a long name was logged as it is")
	}
}

// Rules for some values only are common, so only the counter shows other values.
func TestUnmatchedValueIsCountedAndNotLogged(t *testing.T) {
	d := start(t, map[string]string{"rules": write(t, "rules.yaml", "domain: shop\ndescriptors:\n  - {key: user, value: ada, limit: 1/1h}\n")})
	post(t, d.addr("http"), byRules("shop", "user"))
	d.wantMetrics(`penstock_unmatched_requests_total{domain="shop"} 1`)
	d.wantLog(0, "no rule has these keys")
}

func TestUnmatchedIsLoggedAgainAfterReload(t *testing.T) {
	path := write(t, "rules.yaml", shopRules)
	d := start(t, map[string]string{"rules": path})
	post(t, d.addr("http"), byRules("shop", "usr"))
	replace(t, path, shopRules+"  - {key: other, limit: 1/1h}\n")
	d.Reload()
	d.await("the rules are reloaded", func() bool { return strings.Count(d.log.String(), "rules loaded") >= 2 })
	post(t, d.addr("http"), byRules("shop", "usr"))
	d.wantLog(2, "no rule has these keys")
}

func TestUnmatchedDenyAnswersAsDenial(t *testing.T) {
	d := start(t, map[string]string{"rules": write(t, "rules.yaml", shopRules), "unmatched": "deny"})
	status, answer := post(t, d.addr("http"), byRules("shpo", "user"))
	if want := `{"allowed":false,"decisions":[{"allowed":false}],"detail":"no rule matches the request"}` + "\n"; status != 429 || answer != want {
		t.Errorf("HTTP: %d %s, want 429 %s", status, answer, want)
	}
	if status, answer := post(t, d.addr("http"), byRules("shop", "user", "usr")); status != 200 {
		t.Errorf("HTTP, one descriptor with a rule: %d %s", status, answer)
	}
	status, answer = get(t, "http://"+d.addr("http")+"/v1/auth?domain=shop&usr=1&deny=403")
	if status != 403 || !strings.Contains(answer, "no rule matches") {
		t.Errorf("auth request: %d %s", status, answer)
	}
	json, err := http.Post("http://"+d.addr("http")+"/json", "application/json", strings.NewReader(byRules("shpo", "user")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = json.Body.Close() }()
	if body, err := io.ReadAll(json.Body); json.StatusCode != 429 || err != nil || !strings.Contains(string(body), "OVER_LIMIT") {
		t.Errorf("/json: %d %s, %v", json.StatusCode, body, err)
	}
	response, err := envoyrls.NewRateLimitServiceClient(dialGRPC(t, d, nil)).ShouldRateLimit(context.Background(), &envoyrls.RateLimitRequest{
		Domain: "shop",
		Descriptors: []*envoyratelimit.RateLimitDescriptor{{
			Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: "usr", Value: "1"}},
		}},
	})
	if err != nil || response.OverallCode != envoyrls.RateLimitResponse_OVER_LIMIT ||
		response.Statuses[0].Code != envoyrls.RateLimitResponse_OVER_LIMIT {
		t.Errorf("gRPC: %v, %v", response, err)
	}
	d.wantMetrics(`penstock_unmatched_requests_total{domain="shop"} 2`, `penstock_unmatched_requests_total{domain=""} 2`)
	d.wantLog(1, `domain=shpo nearest=shop setting="--unmatched=deny"`)
}
