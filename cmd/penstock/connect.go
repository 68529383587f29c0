package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/penstock-io/penstock/internal/clienttls"
	"github.com/penstock-io/penstock/server"
	"github.com/spf13/cobra"
)

// connectFlags say how a command reaches a running server. Without --server, that is the
// server with the settings of this machine: the config file and the environment, as
// penstock serve reads them.
type connectFlags struct {
	server, config, store     string
	withoutToken              bool
	token, tokenFile          string
	ca, clientCert, clientKey string
}

// command adds the flags for a listener to a command, which runs with a connection to it.
func (f *connectFlags) command(c *cobra.Command, listener string, run func(*cobra.Command, *connection, []string) error) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		at, err := f.connect(listener)
		if err != nil {
			return err
		}
		return run(c, at, args)
	}
	c.Flags().SortFlags = false
	add := func(to *string, name, kind, help string) {
		c.Flags().StringVar(to, name, "", help)
		completeFlag(c, name, kind, nil)
	}
	add(&f.server, "server", "url", "URL of the "+listener+" listener; by default derived from the settings of penstock serve on this machine")
	add(&f.config, "config", "file", "config file of the server (default: $PENSTOCK_CONFIG)")
	add(&f.ca, "ca", "file", "file of CA certificates, PEM, that the server's certificate is verified by; by default those of the system, or for a server on this machine the certificate in its settings")
	add(&f.clientCert, "client-cert", "file", "certificate to present to a server that requires one, PEM")
	add(&f.clientKey, "client-key", "file", "private key of that certificate, PEM")
	if !f.withoutToken {
		add(&f.token, "token", "text", "the server's token; visible in ps (default: $PENSTOCK_TOKEN)")
		add(&f.tokenFile, "token-file", "file", "file that contains the token (default: $PENSTOCK_TOKEN_FILE)")
	}
	return c
}

// A connection is how to reach a listener of a server.
type connection struct {
	url    *url.URL
	socket string // path of a Unix socket to connect to, whatever the URL's host; "" without one
	token  string
	tls    *tls.Config
	client *http.Client
}

// connect finds a listener by its name. Nothing is sent yet.
func (f *connectFlags) connect(listener string) (*connection, error) {
	settings, err := f.settings()
	if err != nil {
		return nil, err
	}
	at := map[string]server.ListenConfig{
		"grpc": settings.GRPC, "http": settings.HTTP, "resp": settings.RESP, "admin": settings.Admin,
	}[listener]
	c := &connection{}
	if c.url, err = f.serverURL(listener, at); err != nil {
		return nil, err
	}
	if f.server != "" {
		at = server.ListenConfig{} // the socket and certificates of this machine are not those of the server
	}
	if c.tls, err = f.tlsConfig(at, c.url.Hostname()); err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = c.tls
	if path, ok := strings.CutPrefix(at.Addr, unixScheme); ok {
		c.socket = path
		transport.Proxy, transport.DialContext = nil, func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	c.client = &http.Client{Transport: transport, Timeout: requestTimeout}
	if !f.withoutToken {
		c.token, err = f.readToken(settings)
	}
	return c, err
}

// settings returns the server's settings, in an environment of envoyproxy/ratelimit those of
// penstock ratelimit. For a server that --server names, only the variables with the token matter:
// its other settings are elsewhere.
func (f *connectFlags) settings() (*server.Config, error) {
	if f.server != "" && f.config == "" {
		return &server.Config{Token: os.Getenv("PENSTOCK_TOKEN"), TokenFile: os.Getenv("PENSTOCK_TOKEN_FILE")}, nil
	}
	flags := map[string]string{}
	if f.config != "" {
		flags["config"] = f.config
	}
	if f.store != "" {
		flags["store"] = f.store
	}
	environ := os.Environ()
	if _, isMeant := server.RatelimitVariables(environ); isMeant {
		if c, err := server.LoadRatelimitConfig(flags, environ); err == nil { // penstock ratelimit says what is wrong
			return c, nil
		}
	}
	return server.MergeSettings(flags, environ)
}

// readToken returns the token of the flags, or else that of the settings.
func (f *connectFlags) readToken(settings *server.Config) (string, error) {
	token, file, setting := f.token, f.tokenFile, "--token-file"
	switch {
	case token != "" && file != "":
		return "", errors.New("--token and --token-file: want one of them")
	case token == "" && file == "":
		token, file, setting = settings.Token, settings.TokenFile, "the server's token-file"
	}
	if token != "" || file == "" {
		return token, nil
	}
	token, err := server.ReadToken(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", setting, err)
	}
	return token, nil
}

// serverURL returns the URL in --server or, without it, that of a listener on this
// machine.
func (f *connectFlags) serverURL(listener string, at server.ListenConfig) (*url.URL, error) {
	if f.server != "" {
		u, err := url.Parse(f.server)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("--server %q: want the URL of the %s listener, such as %s", f.server, listener, exampleURLs[listener])
		}
		return u, nil
	}
	u := &url.URL{Scheme: "http", Host: "localhost"}
	if at.Cert != "" {
		u.Scheme = "https"
	}
	if strings.HasPrefix(at.Addr, unixScheme) {
		return u, nil
	}
	host, port, err := net.SplitHostPort(at.Addr)
	if err != nil {
		return nil, fmt.Errorf("the settings disable the %s listener: set --server to the URL of another", listener)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	u.Host = net.JoinHostPort(host, port)
	return u, nil
}

// exampleURLs are the listeners of a server with default settings.
var exampleURLs = map[string]string{"http": "http://127.0.0.1:8080", "admin": "http://127.0.0.1:6070"}

// unixScheme begins the address of a listener on a Unix socket, in the server's settings.
const unixScheme = "unix:"

// tlsConfig returns the configuration for a server with a certificate for the host. A
// server on this machine may also use exactly the certificate in its settings, whatever
// its names: it is usually made for the names that other machines use.
func (f *connectFlags) tlsConfig(at server.ListenConfig, host string) (*tls.Config, error) {
	cert, key := f.clientCert, f.clientKey
	if cert == "" && key == "" && at.ClientCA != "" {
		cert, key = at.Cert, at.Key // in many networks one authority signs for both sides
	}
	c, err := clienttls.Config(f.ca, cert, key)
	if err != nil {
		return nil, fmt.Errorf("--ca, --client-cert and --client-key: %w", err)
	}
	if f.ca != "" || at.Cert == "" {
		return c, nil
	}
	own, err := readCertificate(at.Cert)
	if err != nil {
		return nil, fmt.Errorf("the server's certificate: %w", err)
	}
	c.InsecureSkipVerify = true // VerifyConnection verifies
	c.VerifyConnection = func(s tls.ConnectionState) error { return verify(s, own, host) }
	return c, nil
}

// readCertificate returns the first certificate in a file.
func readCertificate(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("no certificate in %s", path)
	}
	return x509.ParseCertificate(block.Bytes)
}

// verify accepts the known certificate, and those that the system trusts for the host.
func verify(s tls.ConnectionState, known *x509.Certificate, host string) error {
	leaf := s.PeerCertificates[0]
	if leaf.Equal(known) {
		return nil
	}
	o := x509.VerifyOptions{DNSName: host, Intermediates: x509.NewCertPool()}
	for _, c := range s.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	_, err := leaf.Verify(o)
	return err
}
