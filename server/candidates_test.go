package server_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/server/adminapi"
)

// candidatesOf returns what the admin API says of the candidates, by their rules.
func (d *daemon) candidatesOf() map[string]adminapi.Candidate {
	d.t.Helper()
	_, text := get(d.t, "http://"+d.addr("admin")+"/v1/candidates")
	var answer struct {
		Candidates []adminapi.Candidate `json:"candidates"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		d.t.Fatalf("%v: %s", err, text)
	}
	all := map[string]adminapi.Candidate{}
	for _, c := range answer.Candidates {
		all[c.Rule] = c
	}
	return all
}

const (
	rulesInForce = "domain: shop\ndescriptors: [{key: user, limit: 4/1h fixed-window}, {key: path, limit: 9/1h fixed-window}]\n"
	rulesToTry   = "domain: shop\ndescriptors: [{key: user, limit: %d/1h fixed-window}, {key: path, limit: 9/1h fixed-window}, {key: plan, limit: 1/1h fixed-window}]\n"
)

func TestCandidateRulesAreCountedAndFollowed(t *testing.T) {
	next := write(t, "next.yaml", fmt.Sprintf(rulesToTry, 2))
	d := start(t, map[string]string{
		"rules": write(t, "rules.yaml", rulesInForce), "candidate-rules": next, "store": "redis://" + redis.Addr, "redis-prefix": rand.Text(), "redis-timeout": "10s",
	})
	statuses := ""
	for range 5 {
		status, _ := post(t, d.addr("http"), byRules("shop", "user", "path", "plan"))
		statuses += fmt.Sprint(status, " ")
	}
	if want := "200 200 200 200 429 "; statuses != want {
		t.Errorf("answers %s, want %s", statuses, want)
	}
	// From the second request on, the plan would deny all that the request asks for, so the user is not compared.
	all := d.candidatesOf()
	plan, user := all["shop/plan"], all["shop/user"]
	if len(all) != 2 || plan.Origin != "file" || plan.Limit != "" || plan.Requests != 5 || plan.NewlyDenied != 4 || len(plan.NewlyDeniedKeys) != 1 || plan.NewlyDeniedKeys[0].Key != "plan=v" {
		t.Errorf("got %+v", all)
	}
	if user.Limit != "4/1h fixed-window" || user.Candidate != "2/1h fixed-window" || user.Requests != 1 || user.WouldDeny != 0 {
		t.Errorf("got %+v", user)
	}
	d.wantMetrics(
		`penstock_candidate_requests_total{candidate="allowed",limit="allowed",rule="shop/plan"} 1`,
		`penstock_candidate_requests_total{candidate="denied",limit="allowed",rule="shop/plan"} 4`,
	)
	rewrite := func(text string) {
		t.Helper()
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite("domain: shop\ndescriptors: [{key: user, limit: nonsense}]")
	d.await("the broken file is reported", func() bool { return d.log.has("candidate rules not reloaded") })
	rewrite(fmt.Sprintf(rulesToTry, 3))
	d.await("the new file is tried", func() bool { return d.candidatesOf()["shop/user"].Candidate == "3/1h fixed-window" })
}

// The candidate of a rule takes the place of that of the candidate rules, which is not compared then.
func TestRuleHasOneCandidate(t *testing.T) {
	d := start(t, map[string]string{
		"rules":           write(t, "rules.yaml", "domain: shop\ndescriptors: [{key: user, limit: 100/1h, candidate: 1/1h}, {key: path, limit: 100/1h}]"),
		"candidate-rules": write(t, "next.yaml", "domain: shop\ndescriptors: [{key: user, limit: 2/1h}, {key: path, limit: 3/1h}]"),
	})
	for range 3 {
		post(t, d.addr("http"), byRules("shop", "user"))
	}
	if all := d.candidatesOf(); len(all) != 2 || all["shop/user"].Origin != "rule" || all["shop/path"].Origin != "file" {
		t.Errorf("got %+v", all)
	}
	d.wantMetrics(`penstock_candidate_requests_total{candidate="denied",limit="allowed",rule="shop/user"} 2`)
	d.wantLog(1, " rules=2 compared=1\n")
}

// While Redis is down, requests are answered as the settings say, candidates or not, and nothing is compared.
func TestCandidateIsNotComparedWithoutItsStore(t *testing.T) {
	server := redistest.StartForTest(t, redistest.Options{})
	d := start(t, map[string]string{
		"rules": write(t, "rules.yaml", "domain: shop\ndescriptors: [{key: user, limit: 100/1h, candidate: 1/1h}]"), "store": "redis://" + server.Addr, "on-store-failure": "allow",
	})
	var before adminapi.Candidate
	d.await("two requests are compared", func() bool { // a call to a busy Redis may time out
		post(t, d.addr("http"), byRules("shop", "user"))
		before = d.candidatesOf()["shop/user"]
		return before.Requests >= 2
	})
	server.Stop()
	for range 5 {
		if status, answer := post(t, d.addr("http"), byRules("shop", "user")); status != http.StatusOK {
			t.Errorf("%d %s, want it allowed", status, answer)
		}
	}
	if c := d.candidatesOf()["shop/user"]; c.Requests != before.Requests || c.NewlyDenied != before.NewlyDenied || c.NewlyDenied == 0 || c.Denied != 0 {
		t.Errorf("got %+v, want the requests before: %+v", c, before)
	}
}
