package server_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// command sends a line to the RESP listener and returns the first line of the reply.
func command(t *testing.T, d *daemon, line string) string {
	t.Helper()
	nc, err := net.Dial("tcp", d.addr("resp"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	if _, err := nc.Write([]byte(line + "\r\n")); err != nil {
		t.Fatal(err)
	}
	reply, err := bufio.NewReader(nc).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func TestInvalidRequestsAreCountedAndLogged(t *testing.T) {
	d := start(t, map[string]string{"rules": write(t, "rules.yaml", shopRules)})
	get(t, "http://"+d.addr("http")+"/v1/auth?key=k&limit=5/minut")
	get(t, "http://"+d.addr("http")+"/v1/auth?key=k&limit=5/minut")
	get(t, "http://"+d.addr("http")+"/v1/tkae")
	post(t, d.addr("http"), `{"key":"k"`)
	post(t, d.addr("http"), `{"key":"","limit":"1/1s"}`)
	post(t, d.addr("http"), strings.Repeat("x", 100<<10))
	answer, err := http.Post("http://"+d.addr("http")+"/json", "application/json", strings.NewReader("{"))
	if err != nil {
		t.Fatal(err)
	}
	read(t, answer)
	if _, err := envoyrls.NewRateLimitServiceClient(dialGRPC(t, d, nil)).ShouldRateLimit(context.Background(), &envoyrls.RateLimitRequest{Domain: "shop"}); err == nil {
		t.Error("gRPC: a request without descriptors was decided")
	}
	for _, line := range []string{"CL.THROTTEL secret 1 1 1", "CL.THROTTLE k 1 1", "GET", "*9999999"} {
		if reply := command(t, d, line); !strings.HasPrefix(reply, "-") {
			t.Errorf("%s: %s", line, reply)
		}
	}
	d.wantMetrics(
		`penstock_invalid_requests_total{api="http",reason="limit"} 2`,
		`penstock_invalid_requests_total{api="http",reason="not_found"} 1`,
		`penstock_invalid_requests_total{api="http",reason="malformed"} 2`,
		`penstock_invalid_requests_total{api="http",reason="key"} 1`,
		`penstock_invalid_requests_total{api="http",reason="too_large"} 1`,
		`penstock_invalid_requests_total{api="grpc",reason="descriptors"} 1`,
		`penstock_invalid_requests_total{api="resp",reason="not_found"} 1`,
		`penstock_invalid_requests_total{api="resp",reason="arguments"} 2`,
		`penstock_invalid_requests_total{api="resp",reason="malformed"} 1`,
		`penstock_invalid_requests_total{api="resp",reason="forbidden"} 0`,
	)
	for _, line := range []string{
		`msg="invalid request" api=http reason=limit problem="limit: bad limit: Period`,
		`msg="invalid request" api=grpc reason=descriptors problem="rate limit descriptor list must not be empty" from=127.0.0.1:`,
		`msg="invalid request" api=resp reason=not_found problem="unknown command CL.THROTTEL" from=127.0.0.1:`,
	} {
		if !d.log.has(line) {
			t.Errorf("the log lacks %s:\n%s", line, d.log)
		}
	}
	if d.log.has("secret") {
		t.Errorf("the log has the arguments of an unknown command:\n%s", d.log)
	}
}

func TestLogDenialsOfEveryAPI(t *testing.T) {
	d := start(t, map[string]string{"rules": write(t, "rules.yaml", shopRules), "log-denials": "100/s"})
	byRule := `{"domain":"shop","cost":6,"descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`
	post(t, d.addr("http"), byRule)
	post(t, d.addr("http"), `{"key":"bob","limit":"1/1h","cost":2}`)
	post(t, d.addr("http"), `{"mode":"each","requests":[{"key":"eve","limit":"1/1h","cost":2},{"key":"fine","limit":"1/1h"}]}`)
	get(t, "http://"+d.addr("http")+"/v1/auth?key=mallory&limit=1/1h&cost=2")
	for range 6 {
		takeGRPC(t, dialGRPC(t, d, nil), "grace")
	}
	command(t, d, "CL.THROTTLE carol 1 1 60 3")
	command(t, d, "PENSTOCK.TAKE KEY dave LIMIT 1/1h COST 2")
	command(t, d, "PENSTOCK.TAKE DOMAIN shop user heidi COST 6")
	d.wantLog(1,
		`msg=denied api=http rule=shop/user key="user=ada" retry_after=never`,
		`msg=denied api=http limit=1/1h key=bob retry_after=never`,
		`msg=denied api=http limit=1/1h key=eve`,
		`msg=denied api=http limit=1/1h key=mallory`,
		`msg=denied api=grpc rule=shop/user key="user=grace"`,
		`msg=denied api=resp limit="1/1m burst=2 name=cl.throttle" key=carol`,
		`msg=denied api=resp limit=1/1h key=dave`,
		`msg=denied api=resp rule=shop/user key="user=heidi"`)
	d.wantLog(8, "msg=denied")
}

func TestLogDenialsIsOffByDefaultAndInShadowMode(t *testing.T) {
	for _, settings := range []map[string]string{{}, {"shadow": "true", "log-denials": "100/s"}} {
		settings["rules"] = write(t, "rules.yaml", shopRules)
		d := start(t, settings)
		post(t, d.addr("http"), `{"key":"bob","limit":"1/1h","cost":2}`)
		post(t, d.addr("http"), `{"domain":"shop","cost":6,"descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`)
		post(t, d.addr("http"), `{"mode":"all","requests":[{"domain":"shop","cost":6,"descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}]}`)
		command(t, d, "CL.THROTTLE carol 1 1 60 3")
		d.wantLog(0, "msg=denied")
	}
}
