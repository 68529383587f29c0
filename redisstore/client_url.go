package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// An address is a URL in its parts. What is in it by mistake must not be left
// unnoticed: a setting that is misspelt may be the one that encrypts.
type address struct {
	scheme, hosts, path string
	query               url.Values
}

// urlParams are what may follow the question mark, by scheme.
var urlParams = map[string][]string{
	"redis":          {"tls", "ca", "cert", "key"},
	"rediss":         {"tls", "ca", "cert", "key"},
	"unix":           {"db"},
	"redis-sentinel": {"tls", "ca", "cert", "key", "sentinel_user", "sentinel_password"},
	"redis-cluster":  {"tls", "ca", "cert", "key"},
}

// parseURL reads where Redis is. The error never shows a password, nor what may
// be a part of one.
func parseURL(text string) (option rueidis.ClientOption, err error) {
	a, err := splitURL(text, &option)
	if err == nil {
		err = a.set(&option)
	}
	if err != nil {
		return rueidis.ClientOption{}, fmt.Errorf("redisstore: bad URL: %w", err)
	}
	return option, nil
}

// splitURL takes a URL apart. Several hosts are not what package url takes for a
// host, and its errors show what is wrong.
func splitURL(text string, option *rueidis.ClientOption) (a address, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return a, errors.New("want one like redis://localhost:6379")
	}
	if _, ok := urlParams[scheme]; !ok {
		return a, fmt.Errorf("scheme %q: want redis, rediss, unix, redis-sentinel or redis-cluster", scheme)
	}
	authority, path := cutAt(rest, "/?#")
	path, query, _ := strings.Cut(path, "?")
	a = address{scheme: scheme, hosts: authority, path: path}
	i := strings.LastIndexByte(authority, '@')
	if strings.Contains(path+query, "#") || strings.Contains(path, "@") || i < 0 && strings.Contains(query, "@") {
		return a, errors.New("write what is special in a user or password as in other URLs: / as %2F, ? as %3F, # as %23")
	}
	if i >= 0 {
		a.hosts = authority[i+1:]
		user, password, _ := strings.Cut(authority[:i], ":")
		var err1, err2 error
		option.Username, err1 = url.PathUnescape(user)
		option.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return a, errors.New("user or password: a % must be followed by two hexadecimal digits; % itself is %25")
		}
	}
	if a.path, err = url.PathUnescape(path); err != nil {
		return a, errors.New("path: a % must be followed by two hexadecimal digits; % itself is %25")
	}
	if a.query, err = url.ParseQuery(query); err != nil {
		return a, errors.New("what follows the ? is not name=value&name=value")
	}
	for name := range a.query {
		if !slices.Contains(urlParams[scheme], name) {
			return a, fmt.Errorf("%q: want one of %s", name, strings.Join(urlParams[scheme], ", "))
		}
	}
	return a, nil
}

func cutAt(s, stops string) (before, after string) {
	if i := strings.IndexAny(s, stops); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// set sets everything that depends on the scheme.
func (a *address) set(option *rueidis.ClientOption) (err error) {
	database, defaultPort := strings.TrimPrefix(a.path, "/"), "6379"
	switch a.scheme {
	case "rediss", "redis":
		option.ForceSingleClient = true
		if strings.Contains(a.hosts, ",") {
			return errors.New("several hosts: want redis-cluster or redis-sentinel in front of them")
		}
	case "unix":
		option.ForceSingleClient = true
		option.InitAddress = []string{a.path}
		database = a.query.Get("db")
		if a.hosts != "" || a.path == "" {
			return errors.New("want the whole path of the socket, as in unix:///run/redis.sock")
		}
	case "redis-sentinel":
		defaultPort = "26379"
		option.Sentinel.MasterSet, database, _ = strings.Cut(database, "/")
		if option.Sentinel.MasterSet == "" {
			return errors.New("want the name of a master after the sentinels, as in redis-sentinel://host:26379/master")
		}
		option.Sentinel.Username, option.Sentinel.Password = a.query.Get("sentinel_user"), a.query.Get("sentinel_password")
	case "redis-cluster":
		option.ShuffleInit = true
	}
	if option.InitAddress == nil {
		if option.InitAddress, err = addresses(a.hosts, defaultPort); err != nil {
			return err
		}
	}
	if err = a.setTLS(option); err != nil {
		return err
	}
	return a.setDatabase(option, database)
}

// addresses adds what is left out of a list of hosts.
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
		if name == "" {
			name = "localhost"
		}
		list = append(list, net.JoinHostPort(name, p))
	}
	return list, nil
}

// setTLS encrypts. The server's name is checked for each address, so that it is
// left open here.
func (a *address) setTLS(option *rueidis.ClientOption) error {
	secure, err := a.secure()
	if err != nil || !secure {
		return err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	option.TLSConfig, option.Sentinel.TLSConfig = config, config
	if ca := a.query.Get("ca"); ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("ca: no certificate in %s", ca)
		}
	}
	if a.query.Has("cert") || a.query.Has("key") {
		own, err := tls.LoadX509KeyPair(a.query.Get("cert"), a.query.Get("key"))
		if err != nil {
			return fmt.Errorf("cert and key: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return nil
}

// secure reports whether connections are to be encrypted.
func (a *address) secure() (bool, error) {
	secure := a.scheme == "rediss"
	switch text := a.query.Get("tls"); {
	case text == "true":
		secure = true
	case text == "false" && secure:
		return false, errors.New("tls: rediss means that it is true")
	case text != "false" && a.query.Has("tls"):
		return false, errors.New("tls: want true or false")
	}
	for _, name := range []string{"ca", "cert", "key"} {
		if a.query.Has(name) && !secure {
			return false, fmt.Errorf("%s: has no meaning without tls=true", name)
		}
	}
	return secure, nil
}

func (a *address) setDatabase(option *rueidis.ClientOption, number string) (err error) {
	if number == "" {
		return nil
	}
	option.SelectDB, err = strconv.Atoi(number)
	switch {
	case err != nil || option.SelectDB < 0:
		return fmt.Errorf("database %q: want a number", number)
	case option.SelectDB != 0 && a.scheme == "redis-cluster":
		return fmt.Errorf("database %d: a Cluster has only database 0", option.SelectDB)
	}
	return nil
}
