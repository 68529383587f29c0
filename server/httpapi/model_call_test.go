package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
)

// A modelCall is one HTTP request.
type modelCall struct {
	mode   modelMode
	parts  []modelPart
	token  bool
	settle bool
	auth   bool
}

type modelMode string

const (
	single modelMode = ""
	each   modelMode = "each"
	all    modelMode = "all"
)

// A modelPart is one request of a call, for one key under a limit, or by rules.
type modelPart struct {
	byRules bool
	id      string // by rules
	asks    []ask
	invalid string // JSON that makes it invalid
}

// request returns the HTTP request of a call.
func (m *modelCase) request(c *modelCall) *http.Request {
	var r *http.Request
	if c.auth {
		r = httptest.NewRequest(http.MethodGet, "/v1/auth?"+queryOf(c), nil)
	} else {
		path := map[bool]string{true: "/v1/settle", false: "/v1/take"}[c.settle]
		r = httptest.NewRequest(http.MethodPost, path, strings.NewReader(bodyOf(c)))
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token {
		r.Header.Set("Authorization", "Bearer secret")
	}
	return r
}

func queryOf(c *modelCall) string {
	p, a := &c.parts[0], c.parts[0].asks[0]
	q := url.Values{"cost": {fmt.Sprint(a.cost)}}
	if p.byRules {
		name, value, _ := strings.Cut(a.key, "=")
		q.Set("domain", "edge")
		q.Set(name, value)
	} else {
		q.Set("key", a.key)
		q.Set("limit", modelLimits[a.key])
	}
	return q.Encode()
}

func bodyOf(c *modelCall) string {
	var parts []string
	for i := range c.parts {
		parts = append(parts, c.parts[i].body())
	}
	if c.mode == single {
		return parts[0]
	}
	return fmt.Sprintf(`{"mode":%q,"requests":[%s]}`, c.mode, strings.Join(parts, ","))
}

func (p *modelPart) body() string {
	if !p.byRules {
		return p.asks[0].body(p.invalid)
	}
	var ds []string
	for _, a := range p.asks {
		name, value, _ := strings.Cut(a.key, "=")
		entries := fmt.Sprintf(`{"key":%q,"value":%q}`, name, value)
		if a.id != "" {
			entries += fmt.Sprintf(`,{"key":"permit","value":%q}`, a.id)
		}
		ds = append(ds, fmt.Sprintf(`{"entries":[%s],"cost":%d}`, entries, a.cost))
	}
	id := ""
	if p.id != "" {
		id = fmt.Sprintf(`,"id":%q`, p.id)
	}
	return fmt.Sprintf(`{"domain":"edge"%s,"descriptors":[%s]%s}`, id, strings.Join(ds, ","), p.invalid)
}

func (a ask) body(invalid string) string {
	b := fmt.Sprintf(`{"key":%q,"limit":%q`, a.key, modelLimits[a.key])
	add := func(is bool, text string) {
		if is {
			b += text
		}
	}
	add(a.cost == resetCost, `,"reset":true`)
	add(a.cost != resetCost, fmt.Sprintf(`,"cost":%d`, a.cost))
	add(a.id != "", fmt.Sprintf(`,"id":%q`, a.id))
	add(a.keepFree > 0, fmt.Sprintf(`,"keep_free":%d`, a.keepFree))
	add(a.hold > 0, fmt.Sprintf(`,"hold":%g`, float64(a.hold)/1000))
	add(a.atMost, `,"at_most":true`)
	add(a.overdraw, `,"overdraw":true`)
	add(a.newID, `,"new_id":true`)
	return b + invalid + "}"
}

// A reply is what the model expects.
type reply struct {
	status int
	parts  []replyPart
}

type replyPart struct {
	allowed bool
	answers []answer
}

// A modelBody is a response.
type modelBody struct {
	Allowed            bool
	Granted, Remaining int64
	RetryAfter         *float64 `json:"retry_after"`
	Decisions          []modelBody
}

// compare returns how a response differs from what is expected, or "". Remembered denials come before
// what the store would say about the other limits of a request.
func (r *reply) compare(c *modelCall, w *httptest.ResponseRecorder, cached bool) string {
	if w.Code != r.status {
		return fmt.Sprintf("want the status %d", r.status)
	}
	if c.auth || r.status != http.StatusOK && r.status != http.StatusTooManyRequests {
		return ""
	}
	var b modelBody
	if err := json.Unmarshal(w.Body.Bytes(), &b); err != nil {
		return err.Error()
	}
	got := b.Decisions
	if c.mode == single {
		got = []modelBody{b}
	}
	if len(got) != len(r.parts) {
		return fmt.Sprintf("want %d decisions", len(r.parts))
	}
	for i := range got {
		if text := r.parts[i].compare(c, i, &got[i], cached && r.denies(c, i)); text != "" {
			return text
		}
	}
	return b.compareParts()
}

// denies reports whether a part is denied, or one that is decided together with it.
func (r *reply) denies(c *modelCall, i int) bool {
	if c.mode == all {
		return r.status != http.StatusOK
	}
	return !r.parts[i].allowed
}

func (p *replyPart) compare(c *modelCall, i int, b *modelBody, onlyGrants bool) string {
	part := &c.parts[i]
	got := []modelBody{*b}
	if part.byRules {
		got = b.Decisions
	}
	if b.Allowed != p.allowed && !(onlyGrants && c.mode == all) || len(got) != len(p.answers) {
		return fmt.Sprintf("want %+v", p)
	}
	for i, want := range p.answers {
		retry := int64(never)
		if got[i].RetryAfter != nil {
			retry = int64(*got[i].RetryAfter*1000 + 0.5)
		}
		a := answer{allowed: got[i].Allowed, granted: got[i].Granted, remaining: got[i].Remaining, retry: retry}
		if c.repeats(part, part.asks[i].key) { // only the last of them has what remains
			a.remaining, a.retry = want.remaining, want.retry
		}
		if part.asks[i].cost < 0 && want.allowed {
			a.retry = 0 // where it is only peeked at, it may say when a unit is left
		}
		if onlyGrants {
			a.allowed, a.remaining, a.retry = want.allowed, want.remaining, want.retry
		}
		if a != want {
			return fmt.Sprintf("want %+v, have %+v", want, a)
		}
	}
	return b.compareParts()
}

// repeats reports whether a key is asked for more than once, of those that are decided together.
func (c *modelCall) repeats(part *modelPart, key string) bool {
	parts := []modelPart{*part}
	if c.mode == all {
		parts = c.parts
	}
	n := 0
	for _, p := range parts {
		for _, a := range p.asks {
			if a.key == key {
				n++
			}
		}
	}
	return n > 1
}

// compareParts returns how the response to several requests differs from that to one of them.
func (b *modelBody) compareParts() string {
	for i := range b.Decisions {
		if d := &b.Decisions[i]; d.Granted == b.Granted && d.Remaining == b.Remaining && (d.Allowed || !b.Allowed) {
			return ""
		}
	}
	if len(b.Decisions) == 0 || b.Allowed && b.Remaining == 0 && b.Granted == 0 {
		return ""
	}
	return "the response is none of its decisions"
}
