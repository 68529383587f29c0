package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// A certificate is how a door proves who it is, and whom it lets in. It is read from
// files, and read again when they change; what cannot be used leaves the last
// good one in force.
type certificate struct {
	ListenConfig
	protocols []string
	files     [3][]byte // as last read, good or bad
	current   atomic.Pointer[tls.Config]
}

// newCertificate reads the files of a door. They must be usable.
func newCertificate(l ListenConfig, protocols ...string) (*certificate, error) {
	c := &certificate{ListenConfig: l, protocols: protocols}
	_, err := c.refresh()
	return c, err
}

// config returns what a TLS listener needs. It follows the files.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: c.protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.current.Load(), nil
		},
	}
}

// expires returns when the certificate in force does.
func (c *certificate) expires() time.Time {
	return c.current.Load().Certificates[0].Leaf.NotAfter
}

// refresh reads the files again, and reports whether they have changed since it last
// did.
func (c *certificate) refresh() (changed bool, err error) {
	var files [3][]byte
	for i, path := range []string{c.Cert, c.Key, c.ClientCA} {
		if path == "" {
			continue
		}
		if files[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
	}
	if c.current.Load() != nil && same(files, c.files) {
		return false, nil
	}
	c.files = files
	config, err := c.parse(files)
	if err != nil {
		return true, err
	}
	c.current.Store(config)
	return true, nil
}

func same(a, b [3][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// parse makes the texts of the files into a configuration, if they can be used.
func (c *certificate) parse(files [3][]byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", c.Cert, c.Key, err)
	}
	if err := checkValidity(pair.Leaf, time.Now()); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Cert, err)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   c.protocols,
		Certificates: []tls.Certificate{pair},
	}
	if c.ClientCA == "" {
		return config, nil
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(files[2]) {
		return nil, fmt.Errorf("no certificate in %s", c.ClientCA)
	}
	return config, nil
}

// checkValidity returns an error if a certificate is not good now: every client would
// refuse it.
func checkValidity(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate expired at %s", leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate is not good before %s", leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}
