package deploytest_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

var (
	listeners    = []string{"http", "grpc", "resp", "admin"}
	rulesInForce = regexp.MustCompile(`(?m)^penstock_rules [1-9]`)
)

// Settings are values of the daemon's flags, by name.
type settings map[string]string

// defaults returns the flags that the help of the daemon has, with their defaults.
var defaults = sync.OnceValues(func() (settings, error) {
	help, err := exec.Command(binary, "serve", "--help").Output()
	found := settings{}
	for _, part := range regexp.MustCompile(`\n +(?:-h, )?--`).Split(string(help), -1)[1:] {
		name := regexp.MustCompile(`^[a-z-]+`).FindString(part)
		found[name] = ""
		if m := regexp.MustCompile(`\(default\s+(\S+)\)`).FindStringSubmatch(part); m != nil {
			found[name] = m[1]
		}
	}
	return found, err
})

// settingsOf returns the settings of a daemon in a container. All of them must be flags.
func settingsOf(t *testing.T, args []string, environ map[string]string) settings {
	t.Helper()
	known, err := defaults()
	if err != nil {
		t.Fatal(err)
	}
	found := settings{}
	for name, value := range known {
		found[name] = value
	}
	for name, value := range environ {
		flag, ok := strings.CutPrefix(name, "PENSTOCK_")
		if flag = strings.ReplaceAll(strings.ToLower(flag), "_", "-"); ok {
			found.set(t, known, flag, value)
		}
	}
	if len(args) == 0 || args[0] != "serve" {
		t.Fatalf("the arguments are %q, want serve first", args)
	}
	for _, arg := range args[1:] {
		flag, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		found.set(t, known, flag, value)
	}
	return found
}

func (s settings) set(t *testing.T, known settings, flag, value string) {
	t.Helper()
	if _, ok := known[flag]; !ok {
		t.Errorf("the daemon has no setting %s", flag)
	}
	s[flag] = value
}

func (s settings) duration(t *testing.T, name string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s[name])
	if err != nil {
		t.Fatalf("--%s: %v", name, err)
	}
	return d
}

// checkRules checks rule files as the manual says.
func checkRules(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command(binary, "rules", "check", dir).CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
		t.Errorf("penstock rules check: %v\n%s", err, out)
	}
}

// A daemon is a process with the settings of a container.
type daemon struct {
	addrs map[string]string
	rules bool
}

// startDaemon starts a daemon with the arguments and variables of a container, in which
// paths are replaced by what is mounted there, at free ports and with the Redis of the
// tests.
func startDaemon(t *testing.T, args []string, environ, mounts map[string]string) *daemon {
	t.Helper()
	if store := environ["PENSTOCK_STORE"]; !strings.HasPrefix(store, "redis://") {
		t.Errorf("the store is %q, want Redis, which daemons share", store)
	}
	args = append(args, "--store", "redis://"+redis.Addr, "--redis-prefix", t.Name(), "--redis-timeout", "10s", "--shutdown-delay", "0s", "--log-format", "json", "--log-level", "info")
	for _, name := range listeners {
		args = append(args, "--"+name, "127.0.0.1:0")
	}
	c := exec.Command(binary, args...)
	for name, value := range environ {
		c.Env = append(c.Env, name+"="+inContainer(t, value, mounts))
	}
	redistest.DieWithParent(c)
	log, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d := &daemon{addrs: map[string]string{}, rules: environ["PENSTOCK_RULES"] != ""}
	lines := bufio.NewScanner(log)
	text := d.readAddrs(lines)
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		for lines.Scan() { // the daemon must not wait for a reader
		}
		if err := c.Wait(); err != nil {
			t.Errorf("the daemon ended with %v, after %s", err, text)
		}
	})
	if len(d.addrs) < len(listeners) {
		t.Fatalf("the daemon does not start:\n%s", text)
	}
	return d
}

// readAddrs reads the log until it has the addresses of all listeners.
func (d *daemon) readAddrs(lines *bufio.Scanner) (text string) {
	for len(d.addrs) < len(listeners) && lines.Scan() {
		text += lines.Text() + "\n"
		var line struct{ Msg, Listener, Addr string }
		if err := json.Unmarshal(lines.Bytes(), &line); err == nil && line.Msg == "listening" {
			d.addrs[line.Listener] = line.Addr
		}
	}
	return text
}

// inContainer replaces the paths in a value by those that are mounted there.
func inContainer(t *testing.T, value string, mounts map[string]string) string {
	t.Helper()
	const path = `/[a-z/.-]+`
	return regexp.MustCompile(`(^|=)`+path).ReplaceAllStringFunc(value, func(match string) string {
		before, file, _ := strings.Cut(match, "/")
		for mount, dir := range mounts {
			rest, ok := strings.CutPrefix("/"+file, mount)
			if !ok {
				continue
			}
			if _, err := os.Stat(dir + rest); err != nil {
				t.Errorf("%s: %v", value, err)
			}
			return before + dir + rest
		}
		t.Errorf("%s: nothing is mounted at /%s", value, file)
		return match
	})
}

func (d *daemon) addr(t *testing.T, listener string) string {
	t.Helper()
	if d.addrs[listener] == "" {
		t.Fatalf("the daemon has no listener %s", listener)
	}
	return d.addrs[listener]
}

// waitOK waits until a probe succeeds, as the kubelet does.
func (d *daemon) waitOK(t *testing.T, url string) {
	t.Helper()
	redistest.WaitFor(t, url, func() bool { status, _ := get(t, url, ""); return status == http.StatusOK })
}

// wantMetricsWithToken reads metrics, which need the token and show that rules are in force.
func (d *daemon) wantMetricsWithToken(t *testing.T, url string) {
	t.Helper()
	if status, _ := get(t, url, ""); status != http.StatusUnauthorized {
		t.Errorf("%s without a token: %d", url, status)
	}
	if status, body := get(t, url, token); status != http.StatusOK || rulesInForce.MatchString(body) != d.rules {
		t.Errorf("%s with the token: %d, want rules %v in %.200s", url, status, d.rules, body)
	}
}

// The kubelet does not verify the certificates of pods.
var client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}

// get returns the answer to a request. The status is 0 if there is none.
func get(t *testing.T, url, bearer string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		request.Header.Set("Authorization", "Bearer "+bearer)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// secretFiles returns the files of every secret: a token, or a certificate for tests.
func secretFiles(t *testing.T) map[string]string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), DNSNames: []string{"penstock"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return map[string]string{
		"token": token, "ca.crt": text("CERTIFICATE", certificate),
		"tls.crt": text("CERTIFICATE", certificate), "tls.key": text("PRIVATE KEY", private),
	}
}
