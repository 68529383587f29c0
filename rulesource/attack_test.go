package rulesource_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/rulesource"
)

func serve(t *testing.T, handler http.HandlerFunc) (host string) {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// sources returns a source of each kind on one server.
func sources(host string) []string {
	return []string{
		"http://" + host + "/rules.yaml", "consul://" + host + "/rules.yaml", "consul://" + host + "/rules/", "etcd://" + host + "/rules.yaml",
		"nacos://" + host + "/G/rules.yaml", "nacos://" + host + "/G/rules.yaml?api=v3", "apollo://" + host + "/app/default/rules.yaml",
	}
}

// wantErrors loads each kind of source from a hostile server.
func wantErrors(t *testing.T, host, want string) {
	t.Helper()
	for _, url := range sources(host) {
		_, err := openSource(t, url, "ada:secret", "").Load(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || len(err.Error()) > 1000 {
			t.Errorf("%s: got %v, want an error with %q", url, err, want)
		}
	}
}

func TestHugeAndEndlessAnswersAreBounded(t *testing.T) {
	t.Parallel()
	block := []byte(strings.Repeat("#", 1<<20))
	host := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	wantErrors(t, host, "larger than")
}

func TestSlowAnswersAreBounded(t *testing.T) {
	t.Parallel()
	host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			_, _ = w.Write([]byte("#"))
			w.(http.Flusher).Flush()
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
	})
	_, err := openSource(t, "http://"+host+"/rules.yaml", "", "").Load(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a timeout", err)
	}
}

func TestGarbageIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\x00\xff", "[1,2", `{"a":"secret"}`, "null", "[]", `[null]`, "<html>", strings.Repeat("[", 100_000)} {
		host := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
		wantErrors(t, host, host)
	}
}

func TestRedirectsToOtherHostsAreRefused(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	other := serve(t, func(w http.ResponseWriter, _ *http.Request) { asked.Add(1) })
	host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+other+"/rules.yaml", http.StatusTemporaryRedirect)
	})
	wantErrors(t, host, "another host")
	if asked.Load() > 0 {
		t.Error("the other host was asked")
	}
	cyclic := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
	})
	wantErrors(t, cyclic, "redirects")
}

func TestErrorsOfServersAreNotRepeated(t *testing.T) {
	t.Parallel()
	host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprint(w, r.Header, r.URL, "ada:secret")
	})
	wantErrors(t, host, "status 500")
}

// A version that changes with each answer costs one load a pause, and only if the rules differ.
func TestFlappingVersionIsBounded(t *testing.T) {
	t.Parallel()
	var asked, version atomic.Int64
	host := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Consul-Index", fmt.Sprint(version.Add(1)))
		_, _ = fmt.Fprintf(w, `[{"Key":"rules.yaml","Value":%q}]`, "ZG9tYWluOiBhCmRlc2NyaXB0b3JzOiBbXQo=")
		asked.Add(1)
	})
	source, err := rulesource.Open("consul://"+host+"/rules.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	load(t, source)
	began := time.Now()
	w := watch(t, source)
	for time.Since(began) < 1500*time.Millisecond {
		select {
		case r := <-w.loads:
			t.Fatalf("loaded %v, %v again", r.set, r.err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if n, took := asked.Load(), time.Since(began); n > 3+int64(took/time.Second) {
		t.Errorf("asked %d times in %v, want at most every second", n, took)
	}
}

func TestKeptRulesAreChecked(t *testing.T) {
	t.Parallel()
	host := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(limitFile(1))) })
	url, keep := "http://"+host+"/rules.yaml", filepath.Join(t.TempDir(), "kept")
	source := openSource(t, url, "", keep)
	load(t, source)
	if _, err := os.Stat(keep); err == nil {
		t.Error("rules are kept before they are used")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	source.Watch(ended, func(*rules.Set, error) error { return nil })
	whole, err := os.ReadFile(keep)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(keep); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kept as %v, %v, want a private file", info, err)
	}
	gone := strings.Replace(url, host, "127.0.0.1:1", 1)
	for name, text := range map[string][]byte{"short": whole[:40], "cut": whole[:len(whole)-1], "empty": nil, "changed": append(whole[:len(whole)-1:len(whole)-1], 'x')} {
		if err := os.WriteFile(keep, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openSource(t, gone, "", keep).Load(t.Context()); err == nil || !strings.Contains(err.Error(), "checksum") {
			t.Errorf("%s: got %v, want an error about the checksum", name, err)
		}
	}
}

func TestCredentialsAreReadAgain(t *testing.T) {
	t.Parallel()
	host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer new" {
			_, _ = w.Write([]byte(limitFile(1)))
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	token := "old"
	source, err := rulesource.Open("http://"+host+"/r", &rulesource.Options{Credentials: func() (string, error) { return token, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "status 401") {
		t.Errorf("with the old token: got %v", err)
	}
	token = "new"
	load(t, source)
}

// A path where nothing can be kept is an error at the start, not in the first outage.
func TestOpenRefusesBadKeep(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	for keep, want := range map[string]string{
		directory: "is a directory", filepath.Join(directory, "none", "rules"): "no such file",
	} {
		_, err := rulesource.Open("etcd://host:2379/key", &rulesource.Options{Keep: keep})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", keep, err, want)
		}
	}
}

// The next server is asked if one fails.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	host := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(limitFile(1))) })
	if n := countOf(load(t, openSource(t, "http://127.0.0.1:1,"+host+"/rules.yaml", "", ""))); n != 1 {
		t.Errorf("got %d", n)
	}
}

func TestOpenRefusesBadURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://ada:secret@host/rules.yaml": "credentials do not belong",
		"zookeeper://host/rules":             "scheme",
		"https://":                           "want a URL",
		"etcd://host:2379":                   "want a key",
		"consul://host:8500/":                "want a key",
		"consul://host:8500/a?tokn=x":        "unknown parameter",
		"nacos://host/rules.yaml":            "GROUP/DATA_ID",
		"nacos://host/g/d?api=v2":            "v1 or v3",
		"apollo://host/app/rules.yaml":       "APP/CLUSTER/NAMESPACE",
		"etcd://a:1,,b:2/key":                "want hosts",
		"etcd://host/key?ca=/x":              "unknown parameter",
		"etcd+https://host/key?ca=/none":     "no such file",
		"etcd+https://host/key?cert=/none":   "want both",
		"etcd://host/key?%zz":                "malformed",
	} {
		_, err := rulesource.Open(url, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want an error with %q", url, err, want)
		}
	}
	source, err := rulesource.Open("testdata/none.yaml", nil)
	if _, ok := source.(*rules.Source); !ok || err != nil {
		t.Errorf("a path: got %T, %v", source, err)
	}
}
