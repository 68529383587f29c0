package server_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server"
	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
)

func startXDS(t *testing.T) *xdstest.Server {
	t.Helper()
	s, err := xdstest.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// denyingRules let no user of a domain pass.
func denyingRules(domain string) []byte {
	c := xdstest.Config{Name: domain, Domain: domain, Descriptors: []xdstest.Descriptor{{Key: "user", Limit: &xdstest.Limit{Unit: xdstest.Year}}}}
	return c.Encode()
}

func TestServerIsUnreadyUntilRulesArrive(t *testing.T) {
	t.Parallel()
	xds := startXDS(t)
	d := start(t, map[string]string{"rules-xds": "grpc://" + xds.Addr() + "?wait=false"})
	if status, body := get(t, "http://"+d.addr("http")+"/healthcheck"); status == http.StatusOK {
		t.Errorf("without rules: got %d %s, want unready", status, body)
	}
	xds.Set("1", denyingRules("shop"))
	d.await("ready", func() bool {
		status, _ := get(t, "http://"+d.addr("http")+"/healthcheck")
		return status == http.StatusOK
	})
	if status, body := post(t, d.addr("http"), spendUser); status != http.StatusTooManyRequests {
		t.Errorf("got %d %s, want a denial by the rule", status, body)
	}
	if _, metrics := get(t, "http://"+d.addr("admin")+"/metrics"); !strings.Contains(metrics, "\npenstock_rules_xds_connected 1\n") {
		t.Error("the metrics do not show the connection")
	}
	xds.Stop()
	d.await("loss of the connection in the metrics", func() bool {
		_, metrics := get(t, "http://"+d.addr("admin")+"/metrics")
		return strings.Contains(metrics, "\npenstock_rules_xds_connected 0\n")
	})
	if status, body := post(t, d.addr("http"), spendUser); status != http.StatusTooManyRequests {
		t.Errorf("without the xDS server: got %d %s, want a denial by the rule", status, body)
	}
}

// A start waits for rules that can be used, whatever comes before them.
func TestServerStartsWithRules(t *testing.T) {
	t.Parallel()
	xds := startXDS(t)
	xds.Set("1", []byte("\xff"))
	go func() {
		for r := range xds.Requests {
			if r.GetErrorDetail() != nil {
				xds.Set("2", denyingRules("shop"))
				return
			}
		}
	}()
	d := start(t, map[string]string{"rules-xds": "grpc://" + xds.Addr()})
	if status, body := post(t, d.addr("http"), spendUser); status != http.StatusTooManyRequests {
		t.Errorf("got %d %s, want a denial by the rule", status, body)
	}
}

func TestServerStartEndsWhileItWaitsForRules(t *testing.T) {
	t.Parallel()
	xds := startXDS(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-xds.Requests
		cancel()
	}()
	_, err := server.New(ctx, load(t, map[string]string{"rules-xds": "grpc://" + xds.Addr()}), nil)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "--rules-xds: no rules received") {
		t.Errorf("got %v", err)
	}
}

func TestConfigHasOneSourceOfRules(t *testing.T) {
	t.Parallel()
	_, err := server.LoadConfig(map[string]string{"rules": "/rules", "rules-xds": "grpc://localhost"}, nil)
	if err == nil || !strings.Contains(err.Error(), "--rules and --rules-xds: want one of them") {
		t.Errorf("got %v", err)
	}
}
