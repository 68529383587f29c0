package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A certificate of an authority whose clock is ahead is not valid yet when it arrives. It is used as
// soon as it is, and not only when the files change once more.
func TestCertificateIsUsedOnceItBecomesValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := ListenConfig{Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
		writeCertificate(t, l, time.Now())
		c, err := newCertificate(l)
		if err != nil {
			t.Fatal(err)
		}
		first := c.expires()

		const ahead = 10 * time.Second
		writeCertificate(t, l, time.Now().Add(ahead))
		if changed, err := c.refresh(); changed || err == nil || !c.expires().Equal(first) {
			t.Errorf("before it is valid: changed %v, error %v, expires %v; want an error and the one before", changed, err, c.expires())
		}
		time.Sleep(ahead)
		if changed, err := c.refresh(); !changed || err != nil || !c.expires().Equal(first.Add(ahead)) {
			t.Errorf("when it is valid: changed %v, error %v, expires %v; want the new one", changed, err, c.expires())
		}
		if changed, err := c.refresh(); changed || err != nil {
			t.Errorf("without a change: changed %v, error %v", changed, err)
		}
	})
}

// writeCertificate writes a certificate that is valid for an hour.
func writeCertificate(t *testing.T, l ListenConfig, from time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: from.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{l.Cert: {Type: "CERTIFICATE", Bytes: der}, l.Key: {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
