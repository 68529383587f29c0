package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// makeCertificate makes a certificate for 127.0.0.1, and first its authority if there is
// none yet.
func makeCertificate(ts *testscript.TestScript, _ bool, args []string) {
	ends := time.Now().Add(time.Hour)
	if len(args) == 2 && args[0] == "expired" {
		ends, args = time.Now().Add(-time.Hour), args[1:]
	}
	if len(args) != 1 {
		ts.Fatalf("usage: certificate [expired] NAME")
	}
	ca, caKey := authority(ts)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: args[0]},
		NotBefore:    time.Now().Add(-24 * time.Hour),
		NotAfter:     ends,
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	ts.Check(err)
	writePEM(ts, args[0]+".crt", "CERTIFICATE", der)
	writeKey(ts, args[0]+".key", key)
}

func authority(ts *testscript.TestScript) (*x509.Certificate, *ecdsa.PrivateKey) {
	if _, err := os.Stat(ts.MkAbs("ca.crt")); err == nil {
		return readAuthority(ts)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	ts.Check(err)
	writePEM(ts, "ca.crt", "CERTIFICATE", der)
	writeKey(ts, "ca.key", key)
	return readAuthority(ts)
}

func readAuthority(ts *testscript.TestScript) (*x509.Certificate, *ecdsa.PrivateKey) {
	cert, err := x509.ParseCertificate(readPEM(ts, "ca.crt"))
	ts.Check(err)
	key, err := x509.ParseECPrivateKey(readPEM(ts, "ca.key"))
	ts.Check(err)
	return cert, key
}

func readPEM(ts *testscript.TestScript, name string) []byte {
	block, _ := pem.Decode([]byte(ts.ReadFile(name)))
	return block.Bytes
}

func writeKey(ts *testscript.TestScript, name string, key *ecdsa.PrivateKey) {
	der, err := x509.MarshalECPrivateKey(key)
	ts.Check(err)
	writePEM(ts, name, "EC PRIVATE KEY", der)
}

func writePEM(ts *testscript.TestScript, name, kind string, der []byte) {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	ts.Check(os.WriteFile(ts.MkAbs(name), text, 0o600))
}
