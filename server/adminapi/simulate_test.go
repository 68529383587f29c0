package adminapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/simulator"
)

func simulate(t *testing.T, body string) *httptest.ResponseRecorder {
	t.Helper()
	s := newServer(t, engine.New(penstock.NewMemory(nil), nil), adminapi.Options{Loopback: true})
	r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/simulate", strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:4000"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestSimulateAnswersAsTheSimulator(t *testing.T) {
	for body, run := range map[string]func() (*simulator.Simulation, error){
		`{"limit":"10/1s","traffic":"edge"}`: func() (*simulator.Simulation, error) { return simulator.Run("10/1s", "edge") },
		`{"limit":"10/1s"}`:                  func() (*simulator.Simulation, error) { return simulator.Run("10/1s", "edge") },
		`{"limit":"2/1s","arrivals":[{"at":0},{"at":0.5,"cost":2}]}`: func() (*simulator.Simulation, error) {
			return simulator.RunArrivals("2/1s", []simulator.Arrival{{At: 0, Cost: 1}, {At: 5e8, Cost: 2}})
		},
	} {
		want, err := run()
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		w := simulate(t, body)
		if got := strings.TrimSpace(w.Body.String()); w.Code != http.StatusOK || got != string(text) {
			t.Errorf("%s: %d %s\nwant %s", body, w.Code, got, text)
		}
	}
}

func TestSimulateRejectsBadRequests(t *testing.T) {
	arrivals := func(n int) string { return strings.TrimSuffix(strings.Repeat(`{},`, n), ",") }
	for body, want := range map[string]string{
		``:                                     "EOF",
		`[]`:                                   "}: got array",
		`{"limit":5}`:                          "limit: got number",
		`{"limit":"10/1s","traffic":"edeg"}`:   `did you mean \"edge\"`,
		`{"limit":"10","traffic":"edge"}`:      "bad limit",
		`{"limit":"10/1s","traffics":"edge"}`:  "unknown field",
		`{"limit":"10/1s","traffic":"edge"}{}`: "want one JSON object",
		`{"limit":"10/1s","traffic":"edge","arrivals":[]}`:             "not both",
		`{"limit":"10/1s","arrivals":[]}`:                              "no arrivals",
		`{"limit":"10/1s","arrivals":[{"at":-5}]}`:                     "before",
		`{"limit":"10/1s","arrivals":[{"at":1e300}]}`:                  "later than",
		`{"limit":"10/1s","arrivals":[{"cost":0}]}`:                    "costs 0, want 1 to",
		`{"limit":"10/1s","arrivals":[{"cost":9223372036854775807}]}`:  "want 1 to",
		`{"limit":"10/1s","arrivals":[` + arrivals(10_001) + `]}`:      "more than 10000 arrivals",
		`{"limit":"10/1s","arrivals":[` + arrivals(40_000) + `]}`:      "too large",
		`{"limit":"` + strings.Repeat("1", 70_000) + `","traffic":""}`: "too large",
	} {
		w := simulate(t, body)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.80s: %d %s, want 400 with %q", body, w.Code, w.Body, want)
		}
	}
}
