package respapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func newCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestServerServesTLS(t *testing.T) {
	cert := newCertificate(t)
	roots := x509.NewCertPool()
	roots.AddCert(must(x509.ParseCertificate(cert.Certificate[0])))
	l := newTestListener(t)
	s := newServer(t, newFakeClock().memory(), nil, nil, nil)
	serve(t, s, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}}))
	nc, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, nc)
	c.send(strings.Repeat(encode("CL.THROTTLE", "k", "2", "1", "60"), 3) + encode("QUIT"))
	for _, want := range []string{"*5 :0 :3 :2 :-1 :60", "*5 :0 :3 :1 :-1 :120", "*5 :0 :3 :0 :-1 :180", "+OK", "closed"} {
		if got := c.read(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// An incomplete handshake times out like an incomplete command.
func TestTLSHandshakeTimesOut(t *testing.T) {
	l := newTestListener(t)
	s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	s.timeouts[partial] = 20 * time.Millisecond
	serve(t, s, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{newCertificate(t)}}))
	c := l.dial(t)
	c.send("\x16\x03\x01")
	if _, err := io.Copy(io.Discard, c.conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("got %v, want EOF", err)
	}
}
