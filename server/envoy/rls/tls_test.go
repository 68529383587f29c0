package rls_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/penstock-io/penstock/server/envoy/rls"
)

// An authority is a certificate authority.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	pair := a.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

// pair returns a certificate for 127.0.0.1.
func (a *authority) pair() tls.Certificate {
	return a.issue(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
}

func (a *authority) issue(template *x509.Certificate) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	template.Subject = pkix.Name{CommonName: "penstock test"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func TestServerTLSAcceptsTrustedClientsOnly(t *testing.T) {
	ca, otherCA := newAuthority(t), newAuthority(t)
	pair := ca.pair()
	plain := &tls.Config{Certificates: []tls.Certificate{pair}}
	reloading := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }}
	choosing := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return plain, nil }}
	mutual := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool}
	client := &tls.Config{RootCAs: ca.pool}
	clientWithCert := &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{ca.pair()}}
	clientWithOtherCA := &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{otherCA.pair()}}
	for _, c := range []struct {
		name   string
		server *tls.Config
		client *tls.Config // nil for clear text
		code   codes.Code
	}{
		{"encrypted", plain, client, codes.OK},
		{"reloaded certificate", reloading, client, codes.OK},
		{"config per client", choosing, client, codes.OK},
		{"clear text", plain, nil, codes.Unavailable},
		{"client with another root", plain, &tls.Config{RootCAs: otherCA.pool}, codes.Unavailable},
		{"mutual", mutual, clientWithCert, codes.OK},
		{"mutual without client certificate", mutual, client, codes.Unavailable},
		{"mutual with certificate of another CA", mutual, clientWithOtherCA, codes.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), &rls.Options{TLS: c.server})
			var options []grpc.DialOption
			if c.client != nil {
				options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(c.client)))
			}
			_, err := pb.NewRateLimitServiceClient(dial(t, l, options...)).ShouldRateLimit(t.Context(), takeRequest("ada"))
			wantCode(t, err, c.code)
		})
	}
}
