package adminapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/observe"
)

const permitRules = `domain: held
descriptors:
- {key: user, limit: 2/30s concurrent, id: request_id}
- {key: path, limit: 5/1h}
`

// permitServer returns a server on which user=ada holds two permits, and was denied a third.
func permitServer(t testing.TB, store penstock.Store) *adminapi.Server {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "held.yaml", Text: []byte(permitRules)})
	if err != nil {
		t.Fatal(err)
	}
	keys := topkeys.New(nil)
	e := engine.New(store, &engine.Options{TopKeys: keys})
	e.SetRules(set)
	for _, id := range []string{"a", "b", "c"} {
		var result engine.Result
		ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: "user", Value: "ada"}, {Key: "request_id", Value: id}}, Cost: 1}}
		if err := e.Decide(t.Context(), "held", ds, &result); err != nil || result.OverLimit != (id == "c") {
			t.Fatal(id, result, err)
		}
	}
	o := observe.New(e, &observe.Options{TopKeys: keys})
	o.Tick()
	return newServer(t, e, adminapi.Options{Loopback: true, Observer: o})
}

func TestPermitsListsHeldPermitsOfTopKeys(t *testing.T) {
	onEachStore(t, func(t *testing.T, e *engine.Engine) {
		s := permitServer(t, e.Store())
		for query, want := range map[string]string{
			"":                  `"keys":[{"key":"user=ada","held":2,"free":0}]`,
			"?rule=held/user":   `"limit":"2/30sconcurrent"`,
			"?rule=held/path":   `"rules":[]`,
			"?keys=0":           `"granted":2,"released":0,"not_held":0,"held_ids":0},"keys":[]`,
			"?keys=21":          `wantawholenumberfrom0to20`,
			"?rule=a&rule=b":    `duplicateparameter`,
			"?key=held%2Fuser1": `unknownparameter`,
		} {
			w := send(s, "GET", "/v1/permits"+query)
			if body := strings.Join(strings.Fields(w.Body.String()), ""); !strings.Contains(body, want) {
				t.Errorf("%q: got %d %s, want %s", query, w.Code, body, want)
			}
		}
	})
}

// A key whose permits are all held is answered with their number, and with when the first of
// them expires.
func TestKeysShowHeldPermits(t *testing.T) {
	onEachStore(t, func(t *testing.T, e *engine.Engine) {
		s := permitServer(t, e.Store())
		for _, path := range []string{"/v1/keys?domain=held&user=ada&request_id=x", "/v1/inspect?rule=held/user&key=ada"} {
			w := send(s, "GET", path)
			var got struct {
				Held       int64
				WouldAllow bool    `json:"would_allow"`
				RetryAfter float64 `json:"retry_after"`
				States     []json.RawMessage
			}
			err := json.Unmarshal(w.Body.Bytes(), &got)
			if len(got.States) == 1 {
				err = json.Unmarshal(got.States[0], &got)
			}
			if err != nil || w.Code != 200 || got.Held != 2 || got.WouldAllow || got.RetryAfter <= 0 || got.RetryAfter > 30 {
				t.Errorf("%s: got %d %s, %v, want 2 permits held and a time to retry", path, w.Code, w.Body, err)
			}
		}
		if w := send(s, "GET", "/v1/keys?domain=held&path=/"); strings.Contains(w.Body.String(), `"held"`) {
			t.Errorf("got %s, want no permits under a rate", w.Body)
		}
	})
}
