package httpapi

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// plainBody is a body as encoding/json decodes it, which accepts much more.
type plainBody struct {
	plainRequest
	Mode     string         `json:"mode"`
	Requests []plainRequest `json:"requests"`
}

type plainRequest struct {
	Key         string      `json:"key"`
	KeyBase64   []byte      `json:"key_base64"`
	Limit       string      `json:"limit"`
	Cost        json.Number `json:"cost"`
	AtMost      bool        `json:"at_most"`
	Overdraw    bool        `json:"overdraw"`
	NewID       bool        `json:"new_id"`
	KeepFree    int64       `json:"keep_free"`
	MaxDelay    float64     `json:"max_delay"`
	ID          string      `json:"id"`
	Domain      string      `json:"domain"`
	Descriptors []struct {
		Entries []struct {
			Key   string `json:"key"`
			Value string `json:"value"`
		} `json:"entries"`
		Cost json.Number `json:"cost"`
	} `json:"descriptors"`
}

// Decoding never panics, and encoding/json decodes accepted bodies to the same
// values.
func FuzzTakeDecode(f *testing.F) {
	for _, body := range []string{
		`{"key":"user:42","limit":"30/1m burst=15","cost":2,"at_most":true,"max_delay":1.5,"id":"x"}`,
		`{"key":"a","limit":"1/s debt=0","cost":2,"overdraw":true}`,
		`{"key":"a","limit":"1/s concurrent","id":"b","new_id":true}`,
		`{"key":"a","limit":"9/s","keep_free":3}`,
		`{"key_base64":"/w==","limit":"10/s","cost":-1}`,
		`{"domain":"edge","descriptors":[{"entries":[{"key":"a","value":"b"},{"key":"c"}],"cost":0}],"cost":3}`,
		`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{"key":"b","limit":"2/s","cost":1e3}]}`,
		`{"key":"\u00e4\ud83d\ude00\n","limit":"1\/s"}`,
		`{"key":"a","key":"b","limit":"1/s"}`, `{"key":"\ud800","limit":"1/s"}`, `{"cost":01}`, `[`, "",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c := &call{body: body}
		err := c.decodeBody(64)
		if err != nil {
			p := problemOf(err)
			if p.Status != 400 || p.Detail == "" || !utf8.ValidString(p.Pointer) {
				t.Fatalf("%q: got the problem %+v, want status 400 and a detail", body, p)
			}
			return
		}
		plain := decodePlain(t, body)
		requests := plain.Requests
		if c.mode == single {
			requests = []plainRequest{plain.plainRequest}
		}
		if string(c.mode) != plain.Mode || len(requests) != len(c.requests) {
			t.Fatalf("%q: got %d requests with mode %q, encoding/json decodes %+v", body, len(c.requests), c.mode, plain)
		}
		for i := range requests {
			compareRequest(t, body, &c.requests[i], &requests[i])
		}
	})
}

func decodePlain(t *testing.T, body []byte) (p plainBody) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatalf("%q was accepted, but encoding/json fails: %v", body, err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("%q was accepted with data after the object", body)
	}
	return p
}

func compareRequest(t *testing.T, body []byte, got *takeRequest, want *plainRequest) {
	t.Helper()
	key := want.Key
	if key == "" {
		key = string(want.KeyBase64)
	}
	seconds := time.Duration(want.MaxDelay * 1e9)
	if got.Request.Key != key || got.Limit != want.Limit || got.Request.ID != want.ID || got.Request.AtMost != want.AtMost || got.Request.Overdraw != want.Overdraw || got.Request.NewID != want.NewID || got.Request.KeepFree != want.KeepFree || got.Domain != want.Domain ||
		(got.Request.MaxDelay-seconds).Abs() > max(seconds.Abs()/1e9, 1) || len(got.Descriptors) != len(want.Descriptors) {
		t.Fatalf("%q: got %+v, encoding/json decodes %+v", body, got, want)
	}
	compareCost(t, body, got.Request.Cost, want.Cost, 1)
	for i, d := range got.Descriptors {
		compareCost(t, body, d.Cost, want.Descriptors[i].Cost, got.Request.Cost)
		for n, e := range d.Entries {
			if plain := want.Descriptors[i].Entries[n]; e.Key != plain.Key || e.Value != plain.Value {
				t.Fatalf("%q: got the entry %q, encoding/json decodes %q", body, e, plain)
			}
		}
	}
}

func compareCost(t *testing.T, body []byte, got int64, text json.Number, absent int64) {
	t.Helper()
	want, err := text.Int64()
	if f, notFloat := text.Float64(); err != nil && notFloat == nil {
		want = int64(f)
	}
	if text == "" {
		want = absent
	}
	if got != want {
		t.Fatalf("%q: got the cost %d, encoding/json decodes %q", body, got, text)
	}
}

func TestJSONReaderSecondsToTheNanosecond(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "-0": 0, "1": time.Second, "1.25": 1250 * time.Millisecond, "0.000000001": 1, "0.0000000019": 1,
		"31622400.000000001": 366*24*time.Hour + 1, "-1.5": -1500 * time.Millisecond, "1e3": 1000 * time.Second,
		"1.5e-1": 150 * time.Millisecond, "9000000000": 9e9 * time.Second,
	} {
		r := &jsonReader{text: text}
		if got, err := r.seconds(); err != nil || got != want {
			t.Errorf("%s seconds: got %v, %v, want %v", text, got, err, want)
		}
	}
}

// newMemoryServer returns a server with an empty memory store.
func newMemoryServer(t testing.TB) (*Server, *penstock.Memory) {
	t.Helper()
	store := penstock.NewMemory(nil)
	s, err := New(engine.New(store, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, store
}
