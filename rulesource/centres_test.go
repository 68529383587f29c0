package rulesource_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A published is the text on a server, and the requests that wait for the next version.
type published struct {
	mu      sync.Mutex
	text    string
	version int
	down    bool
	changed chan struct{}
	server  *httptest.Server
}

func (p *published) get() (text string, version int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text, p.version
}

func (p *published) set(_ *testing.T, text string) {
	p.update(func() { p.text, p.version = text, p.version+1 })
}

func (p *published) stop(*testing.T) {
	p.update(func() { p.down = true })
	p.server.CloseClientConnections()
}
func (p *published) start(*testing.T) { p.update(func() { p.down = false }) }

func (p *published) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// hold waits for another version, for a time that is short enough for a test to see its end.
func (p *published) hold(r *http.Request, version int) (changed bool) {
	p.mu.Lock()
	now, wait := p.version, p.changed
	p.mu.Unlock()
	if now != version {
		return true
	}
	select {
	case <-wait:
	case <-time.After(300 * time.Millisecond):
	case <-r.Context().Done():
	}
	_, now = p.get()
	return now != version
}

// serve starts a server for the text. While it is down, it closes connections.
func (p *published) serve(t *testing.T, handler http.Handler) {
	p.changed = make(chan struct{})
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		down := p.down
		p.mu.Unlock()
		if down {
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(w, r)
	}))
	p.server.Config.ConnState = func(net.Conn, http.ConnState) {}
	p.server.Start()
	t.Cleanup(p.server.Close)
}

func (p *published) host() string { return strings.TrimPrefix(p.server.URL, "http://") }

// An httpCentre serves a file with an entity tag; with waits it holds requests that prefer it.
type httpCentre struct {
	published
	waits, tags bool
}

func (c *httpCentre) url() string         { return c.server.URL + "/rules.yaml?team=a" }
func (c *httpCentre) credentials() string { return "ada:secret" }

func (c *httpCentre) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if user, password, _ := r.BasicAuth(); user+":"+password != c.credentials() || r.URL.Query().Get("team") != "a" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	text, version := c.get()
	tag := fmt.Sprintf("%q", "v"+strconv.Itoa(version))
	if c.tags && r.Header.Get("If-None-Match") == tag {
		if !c.waits || r.Header.Get("Prefer") == "" || !c.hold(r, version) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		text, version = c.get()
	}
	if c.tags {
		w.Header().Set("ETag", fmt.Sprintf("%q", "v"+strconv.Itoa(version)))
	}
	_, _ = w.Write([]byte(text))
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*httpCentre{"polled": {}, "tags": {tags: true}, "waits": {tags: true, waits: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.serve(t, c)
			testCentre(t, c)
		})
	}
}

// A nacosCentre answers as the documentation of Nacos says: the open API of versions 1 and 2, and
// the client API of version 3. Nacos itself does not run in these tests.
type nacosCentre struct {
	published
	v3            bool
	logins, ended int // the last tokens that were given, and that are valid no longer
}

func (c *nacosCentre) url() string {
	url := "nacos://" + c.host() + "/LIMITS/rules.yaml?namespace=prod"
	if c.v3 {
		url += "&api=v3"
	}
	return url
}
func (c *nacosCentre) credentials() string { return "ada:secret" }

func (c *nacosCentre) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/nacos/v1/auth/login" || r.URL.Path == "/nacos/v3/auth/user/login" {
		c.login(w, r)
		return
	}
	c.mu.Lock()
	token, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Query().Get("accessToken"), "token"))
	valid := token > c.ended && token <= c.logins
	c.mu.Unlock()
	if !valid {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	text, version := c.get()
	switch r.Method + " " + r.URL.Path {
	case "GET /nacos/v1/cs/configs":
		if q := r.URL.Query(); q.Get("dataId") != "rules.yaml" || q.Get("group") != "LIMITS" || q.Get("tenant") != "prod" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(text))
	case "POST /nacos/v1/cs/configs/listener":
		ask := fmt.Sprintf("rules.yaml\x02LIMITS\x02%x\x02prod\x01", md5.Sum([]byte(text)))
		if r.Header.Get("Long-Pulling-Timeout") == "" || r.FormValue("Listening-Configs") != ask || c.hold(r, version) {
			_, _ = w.Write([]byte("rules.yaml%02LIMITS%02prod%01\n"))
		}
	case "GET /nacos/v3/client/cs/config":
		if q := r.URL.Query(); q.Get("dataId") != "rules.yaml" || q.Get("groupName") != "LIMITS" || q.Get("namespaceId") != "prod" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"code": 0, "message": "success", "data": map[string]any{"content": text}})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// set also ends all tokens.
func (c *nacosCentre) set(t *testing.T, text string) {
	c.mu.Lock()
	c.ended = c.logins
	c.mu.Unlock()
	c.published.set(t, text)
}

// login gives a new token.
func (c *nacosCentre) login(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("username")+":"+r.FormValue("password") != c.credentials() {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	c.mu.Lock()
	c.logins++
	_, _ = fmt.Fprintf(w, `{"accessToken":"token%d","tokenTtl":18000}`, c.logins)
	c.mu.Unlock()
}

func TestNacos(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*nacosCentre{"v1": {}, "v3": {v3: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.serve(t, c)
			testCentre(t, c)
		})
	}
}

// An apolloCentre answers as Apollo's guide for clients says. Apollo itself does not run in these
// tests.
type apolloCentre struct{ published }

func (c *apolloCentre) url() string         { return "apollo://" + c.host() + "/shop/default/rules.yaml" }
func (c *apolloCentre) credentials() string { return "secret" }

func (c *apolloCentre) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mac := hmac.New(sha1.New, []byte(c.credentials()))
	mac.Write([]byte(r.Header.Get("Timestamp") + "\n" + r.URL.RequestURI()))
	if r.Header.Get("Authorization") != "Apollo shop:"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	text, version := c.get()
	switch r.URL.Path {
	case "/notifications/v2":
		var asked []struct{ NotificationID int }
		if json.NewDecoder(bytes.NewReader([]byte(r.FormValue("notifications")))).Decode(&asked) != nil || len(asked) != 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if asked[0].NotificationID == version && !c.hold(r, version) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, version = c.get()
		_, _ = fmt.Fprintf(w, `[{"namespaceName":"rules.yaml","notificationId":%d}]`, version)
	case "/configs/shop/default/rules.yaml":
		_ = json.NewEncoder(w).Encode(map[string]any{"appId": "shop", "configurations": map[string]string{"content": text}})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func TestApollo(t *testing.T) {
	t.Parallel()
	c := &apolloCentre{}
	c.serve(t, c)
	testCentre(t, c)
}
