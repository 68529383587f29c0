// Package rulesource reads rules from where a company keeps them: files, an HTTP server, Consul,
// etcd, Nacos or Apollo. [Open] returns any of them by its path or URL, as a [rules.Provider].
//
// A configuration centre is watched by its own long poll, so a change is in force within about a
// second. What it sends is used whole or not at all, as files are: a version that is wrong leaves
// the old rules in use. Each request is bounded in time and size, redirects to another host are
// refused, and credentials appear neither in errors nor in [rules.Provider.String]. docs/rule-sources.md describes each
// source.
package rulesource

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/clienttls"
	"github.com/penstock-io/penstock/rules"
)

// Options configure a source.
type Options struct {
	// MergeDomains lets several files or keys add to one domain. Default: each domain must
	// be in one.
	MergeDomains bool

	// AllowEmpty makes a directory without files a set without rules. Default: an error.
	AllowEmpty bool

	// AllowDuplicates is that of [rules.Options], for files only. Default: an error.
	AllowDuplicates bool

	// Credentials are what the server asks for: user:password, for HTTP servers also a bearer
	// token; for Consul its token, and for Apollo the access key secret. The function
	// is called before each request, so that it can read a file that is renewed. Default: none.
	Credentials func() (string, error)

	// Keep is a file for the last rules that were used. They are loaded if the server is
	// unavailable, or has wrong ones, when the program starts. Its directory must
	// exist. Not for files. Default: none.
	Keep string

	// OnKeepError is called if that file cannot be written. Default: that goes unnoticed.
	OnKeepError func(error)

	// Poll is the time between two requests to an HTTP server that does not wait for a change
	// itself, and the longest between two to one that fails. Default: 10 s.
	Poll time.Duration
}

// IsURL reports whether the text names a server, rather than a file or a directory.
func IsURL(source string) bool { return strings.Contains(source, "://") }

// Open returns the source at a path or a URL:
//
//	rules.yaml, /etc/penstock/rules/           a file or a directory
//	https://host/rules.yaml                    an HTTP server
//	consul://host:8500/key                     a key of Consul, or all below key/
//	etcd://host:2379/key                       a key of etcd, or all below key/
//	nacos://host:8848/GROUP/DATA_ID            a configuration in Nacos; ?namespace=ID
//	apollo://host:8080/APP/CLUSTER/NAMESPACE   a namespace of Apollo
//
// All but the first two take several hosts with commas between them, and https by etcd+https://
// and so on, with the parameters ca, cert and key (PEM files). It connects to nothing yet.
func Open(source string, o *Options) (rules.Provider, error) {
	o = cmp.Or(o, &Options{})
	if !IsURL(source) {
		return rules.NewSource(source, &rules.Options{MergeDomains: o.MergeDomains, AllowEmpty: o.AllowEmpty, AllowDuplicates: o.AllowDuplicates}), nil
	}
	l, err := parseLocation(source)
	if err != nil {
		return nil, err
	}
	open := protocols[l.scheme]
	if open == nil {
		return nil, fmt.Errorf("scheme %q: want http, https, consul, etcd, nacos or apollo", l.scheme)
	}
	p, err := open(l)
	if err != nil {
		return nil, err
	}
	if len(l.query) > 0 && !l.isHTTP() {
		return nil, fmt.Errorf("unknown parameter %.40q", slices.Sorted(maps.Keys(l.query))[0])
	}
	if err = checkKeep(o.Keep); err != nil {
		return nil, err
	}
	return newRemote(source, l, p, o), nil
}

// protocols are how the rules of each scheme are fetched.
var protocols = map[string]func(*location) (protocol, error){
	"http": openHTTP, "https": openHTTP, "consul": openConsul, "etcd": openEtcd, "nacos": openNacos, "apollo": openApollo,
}

// A location is a parsed URL.
type location struct {
	scheme  string
	servers []string // such as http://host:2379
	path    string   // without the slash at its beginning
	query   url.Values
	raw     string // the query as it was written
	waits   bool   // the server has a long poll, and need not be asked at intervals
	tls     *tls.Config
}

func (l *location) isHTTP() bool { return l.scheme == "http" || l.scheme == "https" }

// parseLocation leaves the URL out of its errors: it may contain a password.
func parseLocation(source string) (*location, error) {
	scheme, rest, _ := strings.Cut(source, "://")
	hosts, path, _ := strings.Cut(rest, "/")
	if strings.Contains(hosts, "@") {
		return nil, errors.New("credentials do not belong in the URL: set rules-credentials-file, or Options.Credentials")
	}
	u, err := url.Parse("http://host/" + path)
	if err != nil || u.Fragment != "" || hosts == "" || strings.ContainsAny(hosts, "?#") {
		return nil, errors.New("want a URL like https://host/rules.yaml or etcd://host:2379/key")
	}
	l := &location{path: strings.TrimPrefix(u.Path, "/"), raw: u.RawQuery}
	if l.query, err = url.ParseQuery(u.RawQuery); err != nil {
		return nil, errors.New("query is malformed: escape its values as in URLs")
	}
	through := "http"
	if l.scheme = strings.TrimSuffix(scheme, "+https"); l.scheme != scheme || scheme == "https" {
		through = "https"
	}
	for _, host := range strings.Split(hosts, ",") {
		if at, err := url.Parse(through + "://" + host); err != nil || at.Hostname() == "" {
			return nil, errors.New("want hosts like host:2379, with commas between them")
		}
		l.servers = append(l.servers, through+"://"+host)
	}
	if !l.isHTTP() && through == "https" {
		l.tls, err = clienttls.Config(l.take("ca"), l.take("cert"), l.take("key"))
	}
	return l, err
}

// take returns a parameter and removes it, so that those that nothing takes are errors.
func (l *location) take(name string) string {
	text := l.query.Get(name)
	l.query.Del(name)
	return text
}

// parts returns the n names that the path consists of.
func (l *location) parts(want string) ([]string, error) {
	parts := strings.Split(l.path, "/")
	if len(parts) != strings.Count(want, "/")+1 || slices.Contains(parts, "") {
		return nil, fmt.Errorf("want %s://host/%s", l.scheme, want)
	}
	return parts, nil
}
