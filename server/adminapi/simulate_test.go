package adminapi_test

import (
	"encoding/json"
	"io"
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

func sendLog(t *testing.T, s http.Handler, query, log string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/simulate/log?"+query, strings.NewReader(log))
	r.RemoteAddr = "127.0.0.1:4000"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const (
	logLine       = "203.0.113.9 - - [02/Mar/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"-\"\n"
	recordingLine = "1767225600123456789\tallowed\tedge\t1\tremote_address=203.0.113.9\n"
)

func TestSimulateLog(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	for _, test := range []struct{ query, log, want string }{
		{"limit=2/1m", logLine, `"denied":{"count":3,"at_once":3}`},
		{"limit=2/1m&limit=9/1m&by=path,method", logLine, `"keys":1,"denied_keys":0`},
		{"limit=2/1m&rule=edge/remote_address", logLine, `"most_denied":[{"key":"remote_address=203.0.113.9","requests":5,"denied":3,`},
		{"limit=2/1m&rule=edge/remote_address", recordingLine, `"denied":{"count":3}`},
	} {
		if w := sendLog(t, s, test.query, strings.Repeat(test.log, 5)); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s: %d %s, want %s", test.query, w.Code, w.Body, test.want)
		}
	}
	for _, test := range []struct{ query, log, want string }{
		{"", logLine, `"detail":"want 1 to 6 limits to try, not 0, such as ?limit=10/1s`},
		{strings.Repeat("limit=2/1m&", 7), logLine, "not 7"},
		{"limit=2/1m&limt=3/1m", logLine, "unknown parameter"},
		{"limit=2/1m&rule=edge/none", logLine, "no such rule"},
		{"limit=2/1m", "<html>", "no line is one of a known access log"},
		{"limit=2/1m", strings.Repeat(logLine, simulator.MaxLogBytes/len(logLine)+1), "larger than 32 MiB"},
		{"limit=2/1m&by=plan", logLine, "entries that logs do not have"},
	} {
		if w := sendLog(t, s, test.query, test.log); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s: %d %s, want %s", test.query, w.Code, w.Body, test.want)
		}
	}
}

// A log that arrives slowly keeps others from being simulated, and is answered itself.
func TestSimulateOneLogAtATime(t *testing.T) {
	s := newServer(t, newEngine(t), adminapi.Options{Loopback: true})
	body, end := io.Pipe()
	r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/simulate/log?limit=2/1m", body)
	r.RemoteAddr = "127.0.0.1:4000"
	answered := make(chan int)
	go func() {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		answered <- w.Code
	}()
	_, _ = io.WriteString(end, logLine) // returns once it is read
	if w := sendLog(t, s, "limit=2/1m", logLine); w.Code != http.StatusServiceUnavailable {
		t.Errorf("the second log: %d %s, want 503", w.Code, w.Body)
	}
	_ = end.Close()
	if code := <-answered; code != http.StatusOK {
		t.Errorf("the first log: %d, want 200", code)
	}
	if w := sendLog(t, s, "limit=2/1m", logLine); w.Code != http.StatusOK {
		t.Errorf("the next log: %d %s, want 200", w.Code, w.Body)
	}
}
