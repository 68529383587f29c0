package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// A certificate is the TLS configuration of a listener. It is loaded from files, and
// again when they change; the last good one stays in use if that fails.
type certificate struct {
	ListenConfig
	protocols []string
	files     [3][]byte // contents of the configuration in use
	current   atomic.Pointer[tls.Config]
}

// newCertificate loads the files of a listener. They must be valid.
func newCertificate(l ListenConfig, protocols ...string) (*certificate, error) {
	c := &certificate{ListenConfig: l, protocols: protocols}
	_, err := c.refresh()
	return c, err
}

// config returns a configuration that uses the current files in each handshake.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: c.protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.current.Load(), nil
		},
	}
}

// expires returns when the certificate in use expires.
func (c *certificate) expires() time.Time {
	return c.current.Load().Certificates[0].Leaf.NotAfter
}

// refresh loads the files if they differ from those in use, and reports whether it has. Files that
// cannot be used are tried again each time: a certificate may become valid by and by.
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
	if c.current.Load() != nil && slices.EqualFunc(files[:], c.files[:], bytes.Equal) {
		return false, nil
	}
	config, err := c.parse(files)
	if err != nil {
		return false, err
	}
	c.files = files
	c.current.Store(config)
	return true, nil
}

// parse makes a configuration of the files' contents.
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
	if c.ClientSAN != "" {
		config.VerifyConnection = func(state tls.ConnectionState) error {
			return state.PeerCertificates[0].VerifyHostname(c.ClientSAN)
		}
	}
	return config, nil
}

// checkValidity returns an error if a certificate is expired or not valid yet: every
// client would reject it.
func checkValidity(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("certificate expired at %s", leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("certificate is not valid before %s", leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}
