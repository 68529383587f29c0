package adminapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
)

const browserAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

// The page's files hold no data: a browser gets them without the token, and asks for it.
func TestPageNeedsNoTokenAndTheListDoes(t *testing.T) {
	s := newServer(t, newEngineWithOptions(t, &engine.Options{Token: "secret"}), adminapi.Options{})
	for _, path := range []string{"/", "/page/app.js", "/page/style.css"} {
		w := send(s, "GET", path, "Accept", browserAccept)
		if w.Code != 200 || !strings.Contains(w.Header().Get("Content-Security-Policy"), "trusted-types 'none'") {
			t.Errorf("%s in a browser: %d %v, want 200 with the page's policy", path, w.Code, w.Header())
		}
	}
	for accept, want := range map[string]int{"": 401, "*/*": 401, "text/plain": 401, browserAccept: 200} {
		if w := send(s, "GET", "/", "Accept", accept); w.Code != want {
			t.Errorf("/ with Accept %q: %d, want %d", accept, w.Code, want)
		}
	}
	w := send(s, "GET", "/", "Authorization", "Bearer secret")
	if w.Code != 200 || !strings.Contains(w.Body.String(), "/v1/keys") || w.Header().Get("Vary") != "Accept" {
		t.Errorf("/ for curl: %d %s, want the list", w.Code, w.Body)
	}
}

func TestPageAnswersOtherMethodsAndPathsWithProblems(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	for request, want := range map[string]int{
		"POST /": 405, "DELETE /page/app.js": 405, "GET /page/": 404, "GET /page/none.js": 404, "HEAD /page/app.js": 200,
	} {
		method, path, _ := strings.Cut(request, " ")
		if w := send(s, method, path, "Accept", browserAccept); w.Code != want {
			t.Errorf("%s: %d, want %d", request, w.Code, want)
		}
	}
}

// A page without actions shows no buttons for them.
func TestInspectSaysWhetherThereAreActions(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		s := newServer(t, newEngine(t), adminapi.Options{Loopback: true, ReadOnly: readOnly})
		w := send(s, "GET", "/v1/inspect?rule=edge/remote_address&key=10.0.0.1")
		var got struct {
			Actions *bool `json:"actions"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Actions == nil || *got.Actions == readOnly {
			t.Errorf("read only %t: got %d %s, want actions %t", readOnly, w.Code, w.Body, !readOnly)
		}
	}
}
