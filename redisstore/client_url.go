package redisstore

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/clienttls"
	"github.com/redis/rueidis"
)

// A parsedURL is a URL in its parts. Unknown parameters are errors: a misspelt one
// may be the one that encrypts.
type parsedURL struct {
	scheme, hosts, path string
	query               url.Values
}

// urlParams are the query parameters of each scheme.
var urlParams = map[string][]string{
	"redis":          {"tls", "ca", "cert", "key", "verify_hostname"},
	"rediss":         {"tls", "ca", "cert", "key", "verify_hostname"},
	"unix":           {"db"},
	"redis-sentinel": {"tls", "ca", "cert", "key", "verify_hostname", "sentinel_user", "sentinel_password"},
	"redis-cluster":  {"tls", "ca", "cert", "key", "verify_hostname"},
}

// parseURL turns a URL into options of rueidis. Its errors never contain a password,
// nor text that may be part of one.
func parseURL(text string) (option rueidis.ClientOption, err error) {
	u, err := splitURL(text, &option)
	if err == nil {
		err = u.apply(&option)
	}
	if err != nil {
		return rueidis.ClientOption{}, fmt.Errorf("redisstore: bad URL: %w", err)
	}
	return option, nil
}

// splitURL splits a URL, and sets user and password. Package url does not accept
// several hosts, and its errors contain the text.
func splitURL(text string, option *rueidis.ClientOption) (u parsedURL, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return u, errors.New("want a form like redis://localhost:6379")
	}
	if _, ok := urlParams[scheme]; !ok {
		return u, fmt.Errorf("scheme %q: want redis, rediss, unix, redis-sentinel or redis-cluster", scheme)
	}
	end := strings.IndexAny(rest+"/", "/?#")
	authority, path := rest[:end], rest[end:]
	path, query, _ := strings.Cut(path, "?")
	u = parsedURL{scheme: scheme, hosts: authority, path: path}
	i := strings.LastIndexByte(authority, '@')
	if strings.Contains(path+query, "#") || strings.Contains(path, "@") || i < 0 && strings.Contains(query, "@") {
		return u, errors.New("percent-encode special characters in the user and password: / as %2F, ? as %3F, # as %23")
	}
	if i >= 0 {
		u.hosts = authority[i+1:]
		user, password, _ := strings.Cut(authority[:i], ":")
		var err1, err2 error
		option.Username, err1 = url.PathUnescape(user)
		option.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return u, errors.New("user or password: a % must be followed by two hexadecimal digits; % itself is %25")
		}
	}
	if u.path, err = url.PathUnescape(path); err != nil {
		return u, errors.New("path: a % must be followed by two hexadecimal digits; % itself is %25")
	}
	if u.query, err = url.ParseQuery(query); err != nil {
		return u, errors.New("query: want name=value&name=value")
	}
	for name := range u.query {
		if !slices.Contains(urlParams[scheme], name) {
			return u, fmt.Errorf("parameter %q: want one of %s", name, strings.Join(urlParams[scheme], ", "))
		}
	}
	return u, nil
}

// apply sets all options that depend on the scheme.
func (u *parsedURL) apply(option *rueidis.ClientOption) (err error) {
	database, defaultPort := strings.TrimPrefix(u.path, "/"), "6379"
	switch u.scheme {
	case "rediss", "redis":
		option.ForceSingleClient = true
		if strings.Contains(u.hosts, ",") {
			return errors.New("several hosts: want the scheme redis-cluster or redis-sentinel")
		}
	case "unix":
		option.ForceSingleClient = true
		option.InitAddress = []string{u.path}
		database = u.query.Get("db")
		if u.hosts != "" || u.path == "" {
			return errors.New("want the whole path of the socket, as in unix:///run/redis.sock")
		}
	case "redis-sentinel":
		defaultPort = "26379"
		option.Sentinel.MasterSet, database, _ = strings.Cut(database, "/")
		if option.Sentinel.MasterSet == "" {
			return errors.New("want the name of a master after the sentinels, as in redis-sentinel://host:26379/master")
		}
		option.Sentinel.Username, option.Sentinel.Password = u.query.Get("sentinel_user"), u.query.Get("sentinel_password")
	case "redis-cluster":
		option.ShuffleInit = true
	}
	if option.InitAddress == nil {
		if option.InitAddress, err = addresses(u.hosts, defaultPort); err != nil {
			return err
		}
	}
	if err = u.setTLS(option); err != nil {
		return err
	}
	return u.setDatabase(option, database)
}

// addresses adds default names and ports to a list of hosts.
func addresses(hosts, port string) ([]string, error) {
	var list []string
	for _, host := range strings.Split(hosts, ",") {
		name, p, err := net.SplitHostPort(host)
		if err != nil {
			name, p = strings.Trim(host, "[]"), port
		}
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return nil, errors.New("want host:port, with a port from 1 to 65535")
		}
		if name == "" && strings.Contains(hosts, ",") {
			return nil, errors.New("one of several hosts is empty")
		}
		name = cmp.Or(name, "localhost")
		list = append(list, net.JoinHostPort(name, p))
	}
	return list, nil
}

// setTLS enables TLS. The server name stays empty, because it is checked for each
// address.
func (u *parsedURL) setTLS(option *rueidis.ClientOption) error {
	secure, err := u.secure()
	if err != nil || !secure {
		return err
	}
	config, err := clienttls.Config(u.query.Get("ca"), u.query.Get("cert"), u.query.Get("key"))
	if err != nil {
		return err
	}
	option.TLSConfig, option.Sentinel.TLSConfig = config, config
	byName, err := u.flag("verify_hostname", true)
	if err == nil && !byName {
		verifyChainOnly(config)
	}
	return err
}

// verifyChainOnly accepts certificates of any name, as long as they are signed by one of the
// configuration's authorities: some providers have no name of the host in theirs.
func verifyChainOnly(config *tls.Config) {
	config.InsecureSkipVerify = true //nolint:gosec // VerifyConnection verifies the rest
	config.VerifyConnection = func(state tls.ConnectionState) error {
		chain := x509.VerifyOptions{Roots: config.RootCAs, Intermediates: x509.NewCertPool()}
		for _, certificate := range state.PeerCertificates[1:] {
			chain.Intermediates.AddCert(certificate)
		}
		_, err := state.PeerCertificates[0].Verify(chain)
		return err
	}
}

// flag returns a parameter that is true or false.
func (u *parsedURL) flag(name string, byDefault bool) (bool, error) {
	switch text := u.query.Get(name); {
	case !u.query.Has(name):
		return byDefault, nil
	case text == "true" || text == "false":
		return text == "true", nil
	}
	return false, fmt.Errorf("%s: want true or false", name)
}

// secure reports whether connections use TLS.
func (u *parsedURL) secure() (bool, error) {
	secure, err := u.flag("tls", u.scheme == "rediss")
	switch {
	case err != nil:
		return false, err
	case !secure && u.scheme == "rediss":
		return false, errors.New("tls=false contradicts rediss")
	}
	for _, name := range []string{"ca", "cert", "key", "verify_hostname"} {
		if u.query.Has(name) && !secure {
			return false, fmt.Errorf("%s: only allowed with tls=true", name)
		}
	}
	return secure, nil
}

func (u *parsedURL) setDatabase(option *rueidis.ClientOption, number string) (err error) {
	if number == "" {
		return nil
	}
	option.SelectDB, err = strconv.Atoi(number)
	switch {
	case err != nil || option.SelectDB < 0:
		return fmt.Errorf("database %q: want a number", number)
	case option.SelectDB != 0 && u.scheme == "redis-cluster":
		return fmt.Errorf("database %d: a Cluster has only database 0", option.SelectDB)
	}
	return nil
}

// isTransient reports whether an error of connecting may disappear without a change
// of the URL or of the server's settings. A name that cannot be resolved may be that
// of a service which is about to start.
func isTransient(err error) bool {
	return !isA[*RefusedError](err) && !isA[tls.RecordHeaderError](err) && !isA[*tls.CertificateVerificationError](err) &&
		!isA[tls.AlertError](err)
}

// isA reports whether an error is, or wraps, one of a type.
func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
