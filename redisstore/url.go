package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// parseURL reads where Redis is. The error never shows the password.
func parseURL(text string) (rueidis.ClientOption, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return rueidis.ClientOption{}, errors.New("redisstore: bad URL: want one like redis://localhost:6379")
	}
	// Several hosts are not a URL's host, so they are cut out.
	authority, path := cutAt(rest, "/?")
	user, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	u, err := url.Parse("redis://" + user + "host" + path)
	if err != nil {
		return rueidis.ClientOption{}, errors.New("redisstore: bad URL: " + errors.Unwrap(err).Error())
	}
	option := rueidis.ClientOption{Username: u.User.Username()}
	option.Password, _ = u.User.Password()
	return option, setPlace(&option, scheme, hosts, u)
}

func cutAt(s, stops string) (before, after string) {
	if i := strings.IndexAny(s, stops); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// setPlace sets everything that depends on the scheme.
func setPlace(option *rueidis.ClientOption, scheme, hosts string, u *url.URL) (err error) {
	path := strings.TrimPrefix(u.Path, "/")
	secure, defaultPort := u.Query().Get("tls") == "true", "6379"
	switch scheme {
	case "rediss", "redis":
		secure = secure || scheme == "rediss"
		option.ForceSingleClient = true
	case "unix":
		option.ForceSingleClient = true
		option.InitAddress = []string{u.Path}
		path = u.Query().Get("db")
	case "redis-sentinel":
		defaultPort = "26379"
		option.Sentinel.MasterSet, path, _ = strings.Cut(path, "/")
		if option.Sentinel.MasterSet == "" {
			return errors.New("redisstore: bad URL: want the name of a master after the sentinels, as in redis-sentinel://host:26379/master")
		}
		option.Sentinel.Username, option.Sentinel.Password = u.Query().Get("sentinel_user"), u.Query().Get("sentinel_password")
	case "redis-cluster":
		option.ShuffleInit = true
	default:
		return fmt.Errorf("redisstore: bad URL: scheme %q: want redis, rediss, unix, redis-sentinel or redis-cluster", scheme)
	}
	if option.InitAddress == nil {
		option.InitAddress = addresses(hosts, defaultPort)
	}
	if secure {
		if err := setTLS(option, u.Query()); err != nil {
			return err
		}
	}
	return setDatabase(option, scheme, path)
}

// addresses adds what is left out of a list of hosts.
func addresses(hosts, port string) []string {
	var list []string
	for _, host := range strings.Split(hosts, ",") {
		name, p, err := net.SplitHostPort(host)
		if err != nil {
			name, p = strings.Trim(host, "[]"), port
		}
		if name == "" {
			name = "localhost"
		}
		list = append(list, net.JoinHostPort(name, p))
	}
	return list
}

// setTLS encrypts. The server's name is checked for each address, so that it is
// left open here.
func setTLS(option *rueidis.ClientOption, files url.Values) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	option.TLSConfig, option.Sentinel.TLSConfig = config, config
	if ca := files.Get("ca"); ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return fmt.Errorf("redisstore: bad URL: ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("redisstore: bad URL: ca: no certificate in %s", ca)
		}
	}
	if cert := files.Get("cert"); cert != "" {
		own, err := tls.LoadX509KeyPair(cert, files.Get("key"))
		if err != nil {
			return fmt.Errorf("redisstore: bad URL: cert and key: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return nil
}

func setDatabase(option *rueidis.ClientOption, scheme, number string) (err error) {
	if number == "" {
		return nil
	}
	option.SelectDB, err = strconv.Atoi(number)
	switch {
	case err != nil || option.SelectDB < 0:
		return fmt.Errorf("redisstore: bad URL: database %q: want a number", number)
	case option.SelectDB != 0 && scheme == "redis-cluster":
		return fmt.Errorf("redisstore: bad URL: database %d: a Cluster has only database 0", option.SelectDB)
	}
	return nil
}
