package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

// An authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir(), key: newKey(t), pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	a.write("ca.crt", "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign writes NAME.crt and NAME.key, for 127.0.0.1.
func (a *authority) sign(name, common string) {
	a.t.Helper()
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: common},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{common},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".crt", "CERTIFICATE", der)
	a.write(name+".key", "EC PRIVATE KEY", private)
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// client returns the configuration of a client, with a certificate unless name is empty.
func (a *authority) client(name string) *tls.Config {
	c := &tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS12}
	if name == "" {
		return c
	}
	pair, err := tls.LoadX509KeyPair(a.path(name+".crt"), a.path(name+".key"))
	if err != nil {
		a.t.Fatal(err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c
}

func tlsSettings(a *authority, clients bool) map[string]string {
	settings := map[string]string{}
	for _, name := range []string{"grpc", "http", "resp", "admin"} {
		settings[name+"-tls-cert"], settings[name+"-tls-key"] = a.path("server.crt"), a.path("server.key")
		if clients {
			settings[name+"-tls-client-ca"] = a.path("ca.crt")
		}
	}
	return settings
}

// requestAll sends a request to each API over TLS, and returns the errors by listener.
func requestAll(t *testing.T, d *daemon, c *tls.Config) map[string]error {
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
	fetch := func(url string) error {
		answer, err := web.Get(url)
		if err == nil {
			read(t, answer)
		}
		return err
	}
	conn := dialGRPC(t, d, credentials.NewTLS(c))
	_, grpcError := shouldRateLimit(conn, "42")
	return map[string]error{
		"grpc":  grpcError,
		"http":  fetch("https://" + d.addr("http") + "/healthcheck"),
		"resp":  ping(d.addr("resp"), c),
		"admin": fetch("https://" + d.addr("admin") + "/healthz"),
	}
}

// ping sends PING over TLS. In TLS 1.3, a client sees that its certificate was rejected only
// when it reads.
func ping(addr string, c *tls.Config) error {
	conn, err := tls.Dial("tcp", addr, c)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, len("+PONG\r\n")))
	return err
}

func TestServerTLSOnAllListeners(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", "server")
	settings := tlsSettings(a, false)
	settings["rules"] = writeRules(t, shopRules)
	d := start(t, settings)
	for name, err := range requestAll(t, d, a.client("")) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !d.UsesTLS(name) {
			t.Errorf("UsesTLS(%q) is false", name)
		}
	}
	for name, err := range requestAll(t, d, newAuthority(t).client("")) {
		if err == nil {
			t.Errorf("%s: a client with another CA accepts the certificate", name)
		}
	}
	if status, _ := get(t, "http://"+d.addr("http")+"/healthcheck"); status == http.StatusOK {
		t.Error("the HTTP listener accepts plaintext")
	}
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: a.client(""), ForceAttemptHTTP2: true}}
	defer web.CloseIdleConnections()
	answer, err := web.Get("https://" + d.addr("http") + "/healthcheck")
	if err != nil {
		t.Fatal(err)
	}
	if read(t, answer); answer.ProtoMajor != 2 {
		t.Errorf("HTTP over TLS uses %s, want HTTP/2", answer.Proto)
	}
}

func TestServerRequiresClientCertificates(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	a.sign("server", "server")
	a.sign("client", "client")
	other.sign("client", "client")
	settings := tlsSettings(a, true)
	settings["rules"] = writeRules(t, shopRules)
	d := start(t, settings)
	for name, err := range requestAll(t, d, a.client("client")) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range requestAll(t, d, a.client("")) {
		if err == nil {
			t.Errorf("%s: accepted a client without a certificate", name)
		}
	}
	forged := a.client("")
	forged.Certificates = other.client("client").Certificates
	for name, err := range requestAll(t, d, forged) {
		if err == nil {
			t.Errorf("%s: accepted a certificate of another CA", name)
		}
	}
}

// An invalid certificate leaves the last good one in use, on every listener.
// The authority may sign for others, too, so that its clients are told by name.
func TestServerChecksNameOfClientCertificate(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for _, name := range []string{"server", "envoy", "other"} {
		a.sign(name, name)
	}
	d := startRatelimit(t, "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]", "DISABLE_STATS=true",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+a.path("server.crt"), "GRPC_SERVER_TLS_KEY="+a.path("server.key"),
		"GRPC_CLIENT_TLS_CACERT="+a.path("ca.crt"), "GRPC_CLIENT_TLS_SAN=envoy")
	for name, accepted := range map[string]bool{"envoy": true, "other": false, "": false} {
		if _, err := shouldRateLimit(dialGRPC(t, d, credentials.NewTLS(a.client(name))), "42"); (err == nil) != accepted {
			t.Errorf("a client with the certificate of %q: got %v, want it accepted: %v", name, err, accepted)
		}
	}
}

func TestServerReloadsCertificates(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", "first")
	settings := tlsSettings(a, false)
	settings["rules"] = writeRules(t, shopRules)
	d := start(t, settings)
	kept := connectTLS(t, d, a)

	if err := os.WriteFile(a.path("server.crt"), []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Reload()
	d.Reload()
	if n := strings.Count(d.log.String(), "certificate reload failed, keeping the old one"); n != 4 {
		t.Errorf("logged %d times, want once per listener:\n%s", n, d.log)
	}
	for _, name := range []string{"grpc", "http", "resp", "admin"} {
		if got := shownName(t, d, a, name); got != "first" {
			t.Errorf("%s: shows %q after an invalid certificate", name, got)
		}
	}
	if err := os.Remove(a.path("server.key")); err != nil {
		t.Fatal(err)
	}
	d.Reload()
	d.Reload()
	if n := strings.Count(d.log.String(), "no such file"); n != 4 {
		t.Errorf("missing key logged %d times, want once per listener:\n%s", n, d.log)
	}
	a.sign("server", "second")
	d.Reload()
	for _, name := range []string{"grpc", "http", "resp", "admin"} {
		if got := shownName(t, d, a, name); got != "second" {
			t.Errorf("%s: shows %q after a valid certificate", name, got)
		}
	}
	request(t, kept) // open connections are not affected
	a.sign("server", "third")
	d.await("certificate reloaded on change", func() bool { return shownName(t, d, a, "http") == "third" })
}

func connectTLS(t *testing.T, d *daemon, a *authority) net.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", d.addr("http"), a.client(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	request(t, conn)
	return conn
}

// shownName returns the common name of a listener's certificate.
func shownName(t *testing.T, d *daemon, a *authority, listener string) string {
	t.Helper()
	c := a.client("")
	c.NextProtos = map[string][]string{"grpc": {"h2"}}[listener]
	conn, err := tls.Dial("tcp", d.addr(listener), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}
