package httpapi

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// wire is what encoding/json makes of a body. It lets much more pass.
type wire struct {
	wireQuestion
	Mode     string         `json:"mode"`
	Requests []wireQuestion `json:"requests"`
}

type wireQuestion struct {
	Key         string      `json:"key"`
	KeyBase64   []byte      `json:"key_base64"`
	Limit       string      `json:"limit"`
	Cost        json.Number `json:"cost"`
	AtMost      bool        `json:"at_most"`
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

// Whatever is sent, reading it does not panic; and what is accepted is what
// another reader makes of it.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{
		`{"key":"user:42","limit":"30/1m burst=15","cost":2,"at_most":true,"max_delay":1.5,"id":"x"}`,
		`{"key_base64":"/w==","limit":"10/s","cost":-1}`,
		`{"domain":"edge","descriptors":[{"entries":[{"key":"a","value":"b"},{"key":"c"}],"cost":0}],"cost":3}`,
		`{"mode":"all","requests":[{"key":"a","limit":"1/s"},{"key":"b","limit":"2/s","cost":1e3}]}`,
		`{"key":"\u00e4\ud83d\ude00\n","limit":"1\/s"}`,
		`{"key":"a","key":"b","limit":"1/s"}`, `{"key":"\ud800","limit":"1/s"}`, `{"cost":01}`, `[`, "",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c := &call{in: body}
		err := c.decode(64)
		if err != nil {
			p := problemOf(err)
			if p.Status != 400 || p.Detail == "" || !utf8.ValidString(p.Pointer) {
				t.Fatalf("%q: got the problem %+v, want one of status 400 that says why", body, p)
			}
			return
		}
		other := readAsOthersDo(t, body)
		questions := other.Requests
		if c.mode == alone {
			questions = []wireQuestion{other.wireQuestion}
		}
		if string(c.mode) != other.Mode || len(questions) != len(c.questions) {
			t.Fatalf("%q: got %d questions with mode %q, others read %+v", body, len(c.questions), c.mode, other)
		}
		for i := range questions {
			compare(t, body, &c.questions[i], &questions[i])
		}
	})
}

func readAsOthersDo(t *testing.T, body []byte) (w wire) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		t.Fatalf("%q was accepted, and others say %v", body, err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("%q was accepted with something after it", body)
	}
	return w
}

func compare(t *testing.T, body []byte, q *question, w *wireQuestion) {
	t.Helper()
	key := w.Key
	if key == "" {
		key = string(w.KeyBase64)
	}
	seconds := time.Duration(w.MaxDelay * 1e9)
	if q.key != key || q.limit != w.Limit || q.id != w.ID || q.atMost != w.AtMost || q.domain != w.Domain ||
		(q.maxDelay-seconds).Abs() > max(seconds.Abs()/1e9, 1) || len(q.descriptors) != len(w.Descriptors) {
		t.Fatalf("%q: got %+v, others read %+v", body, q, w)
	}
	compareCost(t, body, q.cost, w.Cost, 1)
	for i, d := range q.descriptors {
		compareCost(t, body, d.Cost, w.Descriptors[i].Cost, q.cost)
		for n, e := range d.Entries {
			if other := w.Descriptors[i].Entries[n]; e.Key != other.Key || e.Value != other.Value {
				t.Fatalf("%q: got the entry %q, others read %q", body, e, other)
			}
		}
	}
}

func compareCost(t *testing.T, body []byte, got int64, text json.Number, missing int64) {
	t.Helper()
	want, err := text.Int64()
	if f, notFloat := text.Float64(); err != nil && notFloat == nil {
		want = int64(f)
	}
	if text == "" {
		want = missing
	}
	if got != want {
		t.Fatalf("%q: got the cost %d, others read %q", body, got, text)
	}
}

func TestSecondsAreReadToTheNanosecond(t *testing.T) {
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

// The cache of limits holds no more than its slots, and finds what it forgot
// again.
func TestLimitTextsAreRememberedWithinBounds(t *testing.T) {
	c := newLimitCache(nil)
	if _, err := c.request("1/s"); err == nil {
		t.Error("without a store: want an error")
	}
	d, _ := testDoor(t)
	for i := range 5000 {
		text := "10/1s burst=" + strings.Repeat("1", 1+i%9) + " name=n" + time.Duration(i).String()
		r, err := d.limits.request(text)
		if err != nil || r.Limit.Count != 10 || r.Cost != 1 || r.Limit.Name != "n"+time.Duration(i).String() {
			t.Fatalf("%s: got %+v, %v", text, r, err)
		}
	}
	if n := len(d.limits.slots); n != 1024 {
		t.Errorf("got %d slots, want 1024", n)
	}
}

// testDoor returns a door to an empty memory.
func testDoor(t testing.TB) (*Server, *penstock.Memory) {
	t.Helper()
	store := penstock.NewMemory(nil)
	d, err := New(engine.New(store, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	return d, store
}
