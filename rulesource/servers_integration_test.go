//go:build integration

package rulesource_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// A program is a real server, which is killed and started again with its data.
type program struct {
	args  []string
	ready func() bool
	cmd   *exec.Cmd
}

func (p *program) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	redistest.DieWithParent(p.cmd)
	var log bytes.Buffer
	p.cmd.Stdout, p.cmd.Stderr = &log, &log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", p.args[0], log.String()[max(0, log.Len()-4000):])
		}
	})
	redistest.WaitFor(t, p.args[0], p.ready)
}

func (p *program) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = p.cmd.Wait() // killed
}

func send(method, url string, header http.Header, body string) (int, []byte) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil
	}
	r.Header = header
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, text
}

// An etcdServer is a real one, with authentication.
type etcdServer struct {
	program
	host, token, key string
}

func startEtcd(t *testing.T, key string) *etcdServer {
	c := &etcdServer{host: fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t)), key: key}
	peer := fmt.Sprintf("http://127.0.0.1:%d", redistest.FreePort(t))
	c.args = []string{
		"etcd", "--data-dir", t.TempDir(), "--listen-client-urls", "http://" + c.host, "--advertise-client-urls", "http://" + c.host,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
	}
	c.ready = func() bool {
		status, _ := send("GET", "http://"+c.host+"/health", nil, "")
		return status == http.StatusOK
	}
	c.program.start(t)
	t.Cleanup(func() { c.program.stop(t) })
	c.call(t, "auth/user/add", map[string]any{"name": "root", "password": "secret"})
	c.call(t, "auth/user/grant", map[string]any{"user": "root", "role": "root"})
	c.call(t, "auth/enable", map[string]any{})
	c.login(t)
	return c
}

func (c *etcdServer) login(t *testing.T) {
	var answer struct{ Token string }
	if err := json.Unmarshal(c.call(t, "auth/authenticate", map[string]any{"name": "root", "password": "secret"}), &answer); err != nil {
		t.Fatal(err)
	}
	c.token = answer.Token
}

func (c *etcdServer) call(t *testing.T, path string, body map[string]any) []byte {
	t.Helper()
	text, _ := json.Marshal(body)
	header := http.Header{}
	if c.token != "" && !strings.HasPrefix(path, "auth/") {
		header.Set("Authorization", c.token)
	}
	status, answer := send("POST", "http://"+c.host+"/v3/"+path, header, string(text))
	if status != http.StatusOK {
		t.Fatalf("etcd: %s: status %d, %s", path, status, answer)
	}
	return answer
}

func (c *etcdServer) url() string         { return "etcd://" + c.host + "/" + c.key }
func (c *etcdServer) credentials() string { return "root:secret" }

func (c *etcdServer) set(t *testing.T, text string) {
	c.call(t, "kv/put", map[string]any{"key": []byte(c.key), "value": []byte(text)})
}

func (c *etcdServer) start(t *testing.T) {
	c.program.start(t)
	c.login(t)
}

func TestEtcdIntegration(t *testing.T) { testCentre(t, startEtcd(t, "/limits/rules.yaml")) }

// A directory is all keys below it, and the end of a token or of a revision is no error.
func TestEtcdDirectoryIntegration(t *testing.T) {
	c := startEtcd(t, "rules/")
	put := func(key, text string) { c.call(t, "kv/put", map[string]any{"key": []byte(key), "value": []byte(text)}) }
	put("rules/a.yaml", limitFile(1))
	put("rules/b.yaml", "domain: other\ndescriptors: []\n")
	put("rulesx", "nonsense")
	source := openSource(t, c.url(), c.credentials(), "")
	if set := load(t, source); len(set.Domains()) != 2 {
		t.Fatalf("loaded %v", set.DomainNames())
	}
	var answer struct{ Header struct{ Revision string } }
	for range 10 {
		put("elsewhere", "x")
	}
	if err := json.Unmarshal(c.call(t, "kv/range", map[string]any{"key": []byte("rulesx")}), &answer); err != nil {
		t.Fatal(err)
	}
	c.call(t, "kv/compaction", map[string]any{"revision": answer.Header.Revision})
	w := watch(t, source) // from a revision that is compacted
	put("rules/a.yaml", limitFile(2))
	w.wantCount(2)
	c.stop(t) // which ends all tokens
	w.wantFailure()
	c.start(t)
	w.wantCount(2)
	put("rules/a.yaml", limitFile(3))
	w.wantCount(3)
	put("rules/empty/", "")
	c.call(t, "kv/deleterange", map[string]any{"key": []byte("rules/a"), "range_end": []byte("rules/c")})
	w.wantFailure()
	put("rules/a.yaml", limitFile(4))
	w.wantCount(4)
	c.call(t, "kv/deleterange", map[string]any{"key": []byte("rules/"), "range_end": []byte("rules0")})
	w.wantFailure()
}

// A server that is restored, or replaced by another, has lower revisions: its changes are in force at once, too.
func TestEtcdOfLowerRevisionsIntegration(t *testing.T) {
	old, restored := startEtcd(t, "limits/rules.yaml"), startEtcd(t, "limits/rules.yaml")
	old.set(t, limitFile(1))
	for range 20 {
		old.call(t, "kv/put", map[string]any{"key": []byte("elsewhere"), "value": []byte("x")})
	}
	restored.set(t, limitFile(2))
	front := &forwarder{}
	source := openSource(t, "etcd://"+front.start(t, old.host)+"/limits/rules.yaml", old.credentials(), "")
	load(t, source)
	w := watch(t, source)
	<-front.accepted // of the watch
	began := time.Now()
	front.replace(restored.host)
	w.wantCount(2)
	restored.set(t, limitFile(3))
	w.wantCount(3)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the changes were in force after %v: it waited for a revision of the future", took)
	}
}

// A forwarder is the address of one server, and then of another.
type forwarder struct {
	accepted chan struct{} // for each request after the first two, of the login and of the rules
	mu       sync.Mutex
	to       string
	conns    []net.Conn
}

func (f *forwarder) start(t *testing.T, to string) (host string) {
	t.Helper()
	f.to, f.accepted = to, make(chan struct{}, 1000)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); f.replace("") })
	go func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.forward(conn)
			if n >= 2 {
				f.accepted <- struct{}{}
			}
		}
	}()
	return l.Addr().String()
}

func (f *forwarder) forward(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	server, err := net.Dial("tcp", f.to)
	if err != nil {
		_ = conn.Close()
		return
	}
	f.conns = append(f.conns, conn, server)
	go func() { _, _ = io.Copy(server, conn) }()
	go func() { _, _ = io.Copy(conn, server); _ = conn.Close() }()
}

// replace ends all connections, and makes new ones those of another server.
func (f *forwarder) replace(to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = to
	for _, conn := range f.conns {
		_ = conn.Close()
	}
	f.conns = nil
}

// A consulServer is a real one, with access control.
type consulServer struct {
	program
	host, key string
}

func startConsul(t *testing.T, key string) *consulServer {
	path, err := exec.LookPath("consul")
	if err != nil {
		path = "../.bin/consul/usr/bin/consul"
	}
	if path, err = filepath.Abs(path); err != nil {
		t.Fatal(err)
	}
	port := redistest.FreePort(t)
	c := &consulServer{host: fmt.Sprintf("127.0.0.1:%d", port), key: key}
	c.args = []string{
		path, "agent", "-server", "-bootstrap-expect=1", "-bind=127.0.0.1", "-data-dir=" + t.TempDir(), "-dns-port=-1",
		fmt.Sprintf("-http-port=%d", port), fmt.Sprintf("-server-port=%d", redistest.FreePort(t)),
		fmt.Sprintf("-serf-lan-port=%d", redistest.FreePort(t)), fmt.Sprintf("-serf-wan-port=%d", redistest.FreePort(t)),
		"-hcl", `acl { enabled = true, default_policy = "deny", tokens { master = "f5c4ba6e-7c8c-4bb0-8ba5-b1ba2cbc5e22" } }`,
	}
	c.ready = func() bool {
		status, _ := send("PUT", "http://"+c.host+"/v1/kv/probe", c.header(), "x")
		return status == http.StatusOK
	}
	c.program.start(t)
	t.Cleanup(func() { c.program.stop(t) })
	return c
}

func (c *consulServer) header() http.Header { return http.Header{"X-Consul-Token": {c.credentials()}} }
func (c *consulServer) url() string         { return "consul://" + c.host + "/" + c.key }
func (c *consulServer) credentials() string { return "f5c4ba6e-7c8c-4bb0-8ba5-b1ba2cbc5e22" }

func (c *consulServer) set(t *testing.T, text string) { c.put(t, c.key, text) }

func (c *consulServer) put(t *testing.T, key, text string) {
	t.Helper()
	if status, answer := send("PUT", "http://"+c.host+"/v1/kv/"+key, c.header(), text); status != http.StatusOK {
		t.Fatalf("consul: %s: status %d, %s", key, status, answer)
	}
}

func TestConsulIntegration(t *testing.T) { testCentre(t, startConsul(t, "limits/rules.yaml")) }

func TestConsulDirectoryIntegration(t *testing.T) {
	c := startConsul(t, "rules/")
	c.put(t, "rules/a.yaml", limitFile(1))
	c.put(t, "rules/empty/", "")
	c.put(t, "rules/b.yaml", "domain: other\ndescriptors: []\n")
	source := openSource(t, c.url(), c.credentials(), "")
	if set := load(t, source); len(set.Domains()) != 2 {
		t.Fatalf("loaded %v", set.DomainNames())
	}
	w := watch(t, source)
	c.put(t, "rules/a.yaml", limitFile(2))
	w.wantCount(2)
	if _, err := openSource(t, c.url(), "", "").Load(t.Context()); err == nil {
		t.Error("without the token: want an error")
	}
	send("DELETE", "http://"+c.host+"/v1/kv/rules/?recurse=true", c.header(), "")
	w.wantFailure()
}
