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

	"github.com/penstock-io/penstock/internal/redistest"
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

// sign makes NAME.crt and NAME.key for this machine.
func (a *authority) sign(name, common string) {
	a.t.Helper()
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: common},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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

// client returns what a client trusts, and shows if it has a certificate.
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

func everyDoorEncrypted(a *authority, clients bool) map[string]string {
	settings := map[string]string{}
	for _, door := range []string{"grpc", "http", "resp", "admin"} {
		settings[door+"-tls-cert"], settings[door+"-tls-key"] = a.path("server.crt"), a.path("server.key")
		if clients {
			settings[door+"-tls-client-ca"] = a.path("ca.crt")
		}
	}
	return settings
}

// reach asks each door something over TLS, and returns what went wrong at it.
func reach(t *testing.T, d *daemon, c *tls.Config) map[string]error {
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

// ping asks the RESP door over TLS. A server that refuses a certificate says so only
// when it is spoken to.
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

func TestEveryDoorSpeaksTLS(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", "server")
	settings := everyDoorEncrypted(a, false)
	settings["rules"] = write(t, "rules.yaml", shopRules)
	d := start(t, settings)
	for door, err := range reach(t, d, a.client("")) {
		if err != nil {
			t.Errorf("%s: %v", door, err)
		}
		if !d.UsesTLS(door) {
			t.Errorf("%s does not say that it is encrypted", door)
		}
	}
	for door, err := range reach(t, d, newAuthority(t).client("")) {
		if err == nil {
			t.Errorf("%s: a client that trusts somebody else was satisfied", door)
		}
	}
	if status, _ := get(t, "http://"+d.addr("http")+"/healthcheck"); status == http.StatusOK {
		t.Error("the HTTP door answers in clear text, too")
	}
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: a.client(""), ForceAttemptHTTP2: true}}
	defer web.CloseIdleConnections()
	answer, err := web.Get("https://" + d.addr("http") + "/healthcheck")
	if err != nil {
		t.Fatal(err)
	}
	if read(t, answer); answer.ProtoMajor != 2 {
		t.Errorf("the HTTP door speaks %s over TLS, want HTTP/2 with those who can", answer.Proto)
	}
}

func TestEveryDoorCanDemandCertificates(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	a.sign("server", "server")
	a.sign("client", "client")
	stranger.sign("client", "client")
	settings := everyDoorEncrypted(a, true)
	settings["rules"] = write(t, "rules.yaml", shopRules)
	d := start(t, settings)
	for door, err := range reach(t, d, a.client("client")) {
		if err != nil {
			t.Errorf("%s: %v", door, err)
		}
	}
	for door, err := range reach(t, d, a.client("")) {
		if err == nil {
			t.Errorf("%s: let somebody in without a certificate", door)
		}
	}
	forged := a.client("")
	forged.Certificates = stranger.client("client").Certificates
	for door, err := range reach(t, d, forged) {
		if err == nil {
			t.Errorf("%s: let somebody in with a stranger's certificate", door)
		}
	}
}

// A certificate is replaced while the server runs. One that cannot be used leaves
// the last good one in force, at every door.
func TestCertificatesAreReplaced(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", "first")
	settings := everyDoorEncrypted(a, false)
	settings["rules"] = write(t, "rules.yaml", shopRules)
	d := start(t, settings)
	kept := holdTLS(t, d, a)

	if err := os.WriteFile(a.path("server.crt"), []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Reload()
	d.Reload()
	if n := strings.Count(d.log.String(), "the new certificate cannot be used; the old one stays"); n != 4 {
		t.Errorf("the log complains %d times, want once for each door:\n%s", n, d.log)
	}
	for _, door := range []string{"grpc", "http", "resp", "admin"} {
		if got := shown(t, d, a, door); got != "first" {
			t.Errorf("%s: shows %q after a bad certificate", door, got)
		}
	}
	if err := os.Remove(a.path("server.key")); err != nil {
		t.Fatal(err)
	}
	d.Reload()
	d.Reload()
	if n := strings.Count(d.log.String(), "no such file"); n != 4 {
		t.Errorf("the log says %d times that there is no key, want once for each door:\n%s", n, d.log)
	}
	a.sign("server", "second")
	d.Reload()
	for _, door := range []string{"grpc", "http", "resp", "admin"} {
		if got := shown(t, d, a, door); got != "second" {
			t.Errorf("%s: shows %q after a good certificate", door, got)
		}
	}
	request(t, kept) // whoever was inside is not disturbed
	a.sign("server", "third")
	d.await("noticed without being told", func() bool { return shown(t, d, a, "http") == "third" })
}

func holdTLS(t *testing.T, d *daemon, a *authority) net.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", d.addr("http"), a.client(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	request(t, conn)
	return conn
}

// shown returns whose certificate a door shows.
func shown(t *testing.T, d *daemon, a *authority, door string) string {
	t.Helper()
	c := a.client("")
	c.NextProtos = map[string][]string{"grpc": {"h2"}}[door]
	conn, err := tls.Dial("tcp", d.addr(door), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func startRedis(t *testing.T) *redistest.Server {
	t.Helper()
	s, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}
