package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server"
)

// A kvStore answers as Consul does; rulesource tests the real one.
type kvStore struct {
	mu    sync.Mutex
	text  string
	index int
}

func (s *kvStore) set(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.index = text, s.index+1
}

func (s *kvStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/kv/rules.yaml" || r.Header.Get("X-Consul-Token") != "secret" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		s.mu.Lock()
		text, index := s.text, fmt.Sprint(s.index)
		s.mu.Unlock()
		if index != r.URL.Query().Get("index") {
			w.Header().Set("X-Consul-Index", index)
			_ = json.NewEncoder(w).Encode([]map[string]any{{"Key": "rules.yaml", "Value": []byte(text)}})
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// Rules from a server are loaded, followed, refused if they are wrong, and kept for a start
// without the server. What is wrong shows in the log, in /readyz and in the metrics.
func TestServerRulesFromConfigurationCentre(t *testing.T) {
	t.Parallel()
	const deny = "domain: shop\ndescriptors: [{key: user, limit: 0/1h fixed-window}]\n"
	centre := &kvStore{}
	centre.set(strings.Replace(deny, "0/1h", "1000/1h", 1))
	http1 := httptest.NewServer(centre)
	defer http1.Close()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{
		"rules": "consul://" + strings.TrimPrefix(http1.URL, "http://") + "/rules.yaml", "rules-credentials-file": token, "data": filepath.Join(dir, "data"),
	}
	d := start(t, settings)
	if status, body := post(t, d.addr("http"), spendUser); status != http.StatusOK {
		t.Errorf("by the first rules: got %d %s", status, body)
	}
	centre.set(deny)
	d.await("the new rules", func() bool {
		status, _ := post(t, d.addr("http"), spendUser)
		return status == http.StatusTooManyRequests
	})
	centre.set("nonsense")
	d.await("the refusal", func() bool { return metric(t, d, "penstock_config_last_load_successful") == 0 })
	if _, body := get(t, "http://"+d.addr("admin")+"/readyz"); !strings.Contains(body, `"old_rules": true`) || strings.Contains(body, "so would a restart") {
		t.Errorf("/readyz says %s, want that old rules are in force", body)
	}
	centre.set(deny)
	d.await("the good rules", func() bool { return metric(t, d, "penstock_config_last_load_successful") == 1 })
	d.end()

	http1.CloseClientConnections()
	http1.Close()
	d = start(t, settings)
	if status, body := post(t, d.addr("http"), spendUser); status != http.StatusTooManyRequests {
		t.Errorf("without the server: got %d %s, want a denial by the rules of the last run", status, body)
	}
	d.await("the failure", func() bool { return metric(t, d, "penstock_config_last_load_successful") == 0 })
	if !d.log.has("connection refused") || d.log.has("secret") {
		t.Errorf("want the failure in the log, and no secret:\n%s", d.log)
	}
	delete(settings, "data")
	if _, err := server.New(t.Context(), load(t, settings), nil); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("without the server and a data directory: got %v, want an error", err)
	}
}

// A rules server that repeats the request gets no credentials into the log, the pages and the metrics.
func TestServerHidesRepeatedCredentials(t *testing.T) {
	t.Parallel()
	const secret = "ada:a-long-password"
	var repeated atomic.Pointer[string]
	good := "domain: shop\n"
	repeated.Store(&good)
	centre := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", "x")
		_, _ = fmt.Fprint(w, strings.ReplaceAll(*repeated.Load(), "ECHO", r.Header.Get("Authorization")))
	}))
	defer centre.Close()
	d := start(t, map[string]string{"rules": centre.URL + "/rules.yaml", "rules-credentials": secret})
	for _, text := range []string{
		"domain: shop\nECHO: 1\n", "domain: ECHO\ndescriptors: [{key: user, limit: 1/1s}]\n", "domain: shop\ndescriptors: [{key: ECHO, limit: 1/1s}]\n",
	} {
		repeated.Store(&text)
		d.Reload()
		d.await("the refusal", func() bool { return metric(t, d, "penstock_config_last_load_successful") == 0 })
		shown := d.log.String()
		for _, page := range []string{"/readyz", "/rules", "/metrics"} {
			_, body := get(t, "http://"+d.addr("admin")+page)
			shown += body
		}
		if encoded := base64.StdEncoding.EncodeToString([]byte(secret)); strings.Contains(shown, encoded) || strings.Contains(shown, "a-long-password") {
			t.Errorf("%q: shown: %s", text, shown)
		}
		repeated.Store(&good)
		d.Reload()
		d.await("the good rules", func() bool { return metric(t, d, "penstock_config_last_load_successful") == 1 })
	}
}
