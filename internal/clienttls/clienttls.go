// Package clienttls makes the TLS configuration of a client from PEM files.
package clienttls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Config returns a configuration that trusts the authorities in a file, by default the system's, and presents
// a certificate, if there is one. That is read again for each connection: it may be renewed.
func Config(ca, cert, key string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca: no certificate in %s", ca)
		}
	}
	switch {
	case cert == "" && key == "":
		return c, nil
	case cert == "" || key == "":
		return nil, errors.New("cert and key: want both of them or none")
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("cert and key: %w", err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		return &pair, err
	}
	return c, nil
}
