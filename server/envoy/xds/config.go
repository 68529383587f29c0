package xds

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/clienttls"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// A Config says where the rules come from, and as which node the client asks for them.
type Config struct {
	Addr string // host:port of the management server

	TLS        bool
	CA         string // PEM file; "": the system's authorities
	Cert, Key  string // PEM files of the client's certificate; "": none
	ServerName string // in the server's certificate; "": the host of Addr

	Node     string            // ID, by which the server chooses the rules
	Metadata map[string]string // of the node
	Headers  map[string]string // sent when the stream is opened

	// Wait makes a daemon wait for its first rules before it serves.
	Wait bool
}

// Defaults of a [Config], which are those of envoyproxy/ratelimit.
const (
	defaultNode = "default"
	defaultPort = "18000"
)

// ParseURL returns the configuration that a URL contains, such as
//
//	grpcs://envoy-gateway:18001?node=envoy-ratelimit&ca=/certs/ca.crt
//
// Its scheme is grpc, or grpcs for TLS. Its parameters are ca, cert, key, server_name, node,
// wait (true or false), and, as often as needed, metadata=NAME:VALUE and header=NAME:VALUE.
// Errors never contain the URL, since headers may be secret.
func ParseURL(text string) (*Config, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errWantURL
	}
	query, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return nil, errors.New("query is malformed: escape its values as in URLs")
	case u.Scheme != "grpc" && u.Scheme != "grpcs", u.Hostname() == "", u.User != nil, strings.Trim(u.Path, "/") != "":
		return nil, errWantURL
	}
	c := &Config{Addr: withPort(u), TLS: u.Scheme == "grpcs", Node: defaultNode, Wait: true}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if err := c.setParameter(name, query[name]); err != nil {
			return nil, fmt.Errorf("parameter %.40q: %w", name, err)
		}
	}
	return c, c.check()
}

var errWantURL = errors.New("want a URL like grpc://host:18000?node=ID, or grpcs:// for TLS")

func withPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), defaultPort)
}

func (c *Config) setParameter(name string, values []string) (err error) {
	texts := map[string]*string{"ca": &c.CA, "cert": &c.Cert, "key": &c.Key, "server_name": &c.ServerName, "node": &c.Node}
	switch into, ok := texts[name]; {
	case name == "metadata":
		c.Metadata, err = parsePairs(values)
	case name == "header":
		c.Headers, err = parsePairs(values)
	case len(values) > 1:
		return errors.New("is set twice")
	case ok:
		*into = values[0]
	case name == "wait":
		if c.Wait, err = strconv.ParseBool(values[0]); err != nil {
			return errors.New("want true or false")
		}
	default:
		return errors.New("want node, ca, cert, key, server_name, wait, metadata or header")
	}
	return err
}

func parsePairs(values []string) (map[string]string, error) {
	pairs := map[string]string{}
	for _, pair := range values {
		name, value, ok := strings.Cut(pair, ":")
		if !ok || name == "" {
			return nil, errors.New("want NAME:VALUE")
		}
		pairs[name] = value
	}
	return pairs, nil
}

func (c *Config) check() error {
	switch {
	case c.Node == "":
		return errors.New("node is empty: the server chooses the rules by it")
	case !c.TLS && (c.CA != "" || c.Cert != "" || c.Key != "" || c.ServerName != ""):
		return errors.New("certificates without TLS: want grpcs://")
	case (c.Cert == "") != (c.Key == ""):
		return errors.New("cert and key: want both of them or none")
	}
	return nil
}

// URL returns the configuration in the form that [ParseURL] reads.
func (c *Config) URL() string {
	query := url.Values{"node": {c.Node}, "wait": {strconv.FormatBool(c.Wait)}}
	for name, value := range map[string]string{"ca": c.CA, "cert": c.Cert, "key": c.Key, "server_name": c.ServerName} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, pairs := range map[string]map[string]string{"metadata": c.Metadata, "header": c.Headers} {
		for _, key := range slices.Sorted(maps.Keys(pairs)) {
			query.Add(name, key+":"+pairs[key])
		}
	}
	u := url.URL{Scheme: "grpc", Host: c.Addr, RawQuery: query.Encode()}
	if c.TLS {
		u.Scheme = "grpcs"
	}
	return u.String()
}

// credentials reads the certificates, which may have been renewed since the last time.
func (c *Config) credentials() (credentials.TransportCredentials, error) {
	if !c.TLS {
		return insecure.NewCredentials(), nil
	}
	config, err := clienttls.Config(c.CA, c.Cert, c.Key)
	if err != nil {
		return nil, err
	}
	config.ServerName = c.ServerName
	return credentials.NewTLS(config), nil
}
