package httplimit_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func TestQuotaExceeded(t *testing.T) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Length", "3")
	httplimit.WriteProblem(w, httplimit.QuotaExceeded([]httplimit.Answer{
		{Policy: "ip", Decision: penstock.Decision{Allowed: true}},
		{Limit: penstock.PerDay(5).WithName("daily")},
		{Policy: "band\"width"},
	}))
	want := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,` +
		`"violated-policies":["daily","band\"width"]}` + "\n"
	if got := w.Body.String(); got != want || w.Code != http.StatusTooManyRequests {
		t.Errorf("%d\n%swant 429\n%s", w.Code, got, want)
	}
	if got, want := headerText(w.Header()), "Content-Type: application/problem+json\nX-Content-Type-Options: nosniff\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// A client that waits for Retry-After would wait for ever, so the problem says why there
// is none.
func TestProtectSaysThatCostNeverFits(t *testing.T) {
	lim, err := penstock.New(penstock.NewMemory(nil), penstock.PerMinute(2000))
	if err != nil {
		t.Fatal(err)
	}
	cost := func(*http.Request) int64 { return 2004 }
	h := httplimit.Protect(lim, &httplimit.Options{Cost: cost})(http.NotFoundHandler())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	var got httplimit.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if want := "costs 2004, and the limit never grants more than 2000"; w.Code != 429 || got.Detail != want {
		t.Errorf("got %d %s, want the detail %q", w.Code, w.Body, want)
	}
}

func TestWriteProblemDefaultsStatus(t *testing.T) {
	for _, test := range []struct {
		p      httplimit.Problem
		status int
		title  string
	}{
		{httplimit.Problem{}, 500, "Internal Server Error"},
		{httplimit.Problem{Status: -1}, 500, "Internal Server Error"},
		{httplimit.Problem{Status: 200}, 500, "Internal Server Error"},
		{httplimit.Problem{Status: 1000}, 500, "Internal Server Error"},
		{httplimit.Problem{Status: 503}, 503, "Service Unavailable"},
		{httplimit.Problem{Status: 403, Title: "Banned", Type: httplimit.TypeAbnormalUsage}, 403, "Banned"},
		{httplimit.Problem{Status: 503, Title: "\xff\x00", Type: httplimit.TypeReducedCapacity}, 503, "\ufffd\x00"},
	} {
		w := httptest.NewRecorder()
		httplimit.WriteProblem(w, test.p)
		var got httplimit.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Errorf("%+v: %v in %q", test.p, err, w.Body)
		}
		if w.Code != test.status || got.Status != test.status || got.Title != test.title || got.Type != test.p.Type {
			t.Errorf("%+v: answered %d %+v", test.p, w.Code, got)
		}
	}
}
