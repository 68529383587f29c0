package controlplanetest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// An authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "envoy-gateway"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = a.create(template, template, a.key)
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

func (a *authority) create(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// write writes a certificate for a name, its key and the authority, by the names of the files
// in the secrets of Envoy Gateway.
func (a *authority) write(dir, name string) {
	a.t.Helper()
	key := newKey(a.t)
	cert := a.create(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert.Raw}, "tls.key": {Type: "EC PRIVATE KEY", Bytes: der}, "ca.crt": {Type: "CERTIFICATE", Bytes: a.cert.Raw},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// credentials of a control plane that requires certificates of the authority.
func (a *authority) credentials(name string) grpc.ServerOption {
	a.t.Helper()
	dir := a.t.TempDir()
	a.write(dir, name)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		a.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}))
}

func tlsEnviron(addr, dir, name string) []string {
	return []string{
		"CONFIG_GRPC_XDS_SERVER_URL=" + addr, "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_SAN=" + name,
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + dir + "/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + dir + "/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + dir + "/ca.crt", "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
	}
}

// Certificates are read again at each connection: those of Envoy Gateway are renewed while its
// service runs.
func TestDaemonUsesRenewedCertificates(t *testing.T) {
	t.Parallel()
	before, after, dir := newAuthority(t), newAuthority(t), t.TempDir()
	before.write(dir, "envoy-rate-limit")
	c := startControlPlane(t, "", before.credentials("envoy-gateway"))
	c.serve("1", policy(1))
	d := startDaemon(t, tlsEnviron(c.addr, dir, "envoy-gateway")...)
	c.awaitAccepted("1")
	d.want(t, over, "rule-0-match-0", "rule-0-match-0")
	c.server.Stop()
	c = startControlPlane(t, c.addr, after.credentials("envoy-gateway"))
	c.serve("2")
	await(t, "refusal of the old authority", func() bool { return strings.Contains(d.log.String(), "certificate") })
	d.want(t, over, "rule-0-match-0", "rule-0-match-0")
	after.write(dir, "envoy-rate-limit")
	c.awaitAccepted("2")
	d.want(t, ok, "rule-0-match-0", "rule-0-match-0")
}

func TestDaemonRefusesControlPlaneOfAnotherName(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), t.TempDir()
	a.write(dir, "envoy-rate-limit")
	c := startControlPlane(t, "", a.credentials("other"))
	c.serve("1", policy(1))
	d := startDaemon(t, tlsEnviron(c.addr, dir, "envoy-gateway")...)
	await(t, "refusal of the name", func() bool { return strings.Contains(d.log.String(), "not envoy-gateway") })
	if c.answered("1", "") {
		t.Error("the daemon talked to a server of another name")
	}
}
