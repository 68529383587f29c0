package rulesource

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/rules"
)

// A consulKey is a key of Consul, or all keys below one that ends with a slash. Blocking queries
// wait for an index above that of the last answer.
type consulKey struct {
	key   string
	query url.Values
}

func openConsul(l *location) (protocol, error) {
	if strings.Trim(l.path, "/") == "" {
		return nil, errWantKey
	}
	l.waits = true
	s := &consulKey{key: l.path, query: url.Values{}}
	for _, name := range []string{"dc", "ns", "partition"} {
		if text := l.take(name); text != "" {
			s.query.Set(name, text)
		}
	}
	if strings.HasSuffix(l.path, "/") {
		s.query.Set("recurse", "true")
	}
	return s, nil
}

func (s *consulKey) fetch(ctx context.Context, c *client, version string) ([]rules.File, string, error) {
	token, err := c.credentials()
	if err != nil {
		return nil, "", err
	}
	r := request{header: http.Header{}}
	if token != "" {
		r.header.Set("X-Consul-Token", token)
	}
	query := maps.Clone(s.query)
	if version != "" {
		query.Set("index", version)
		query.Set("wait", holdTime.String())
		r.hold = holdTime + holdTime/16 // Consul adds so much, at random
	}
	r.target = "/v1/kv/" + escape(s.key)[1:] + "?" + query.Encode()
	var pairs []struct {
		Key   string
		Value []byte
	}
	header, err := c.json(ctx, r, &pairs)
	if err != nil {
		return nil, "", orNoKey(err)
	}
	var files []rules.File
	for _, p := range pairs {
		files = appendKey(files, s.key, p.Key, p.Value)
	}
	if len(files) == 0 {
		return nil, "", errNoRules
	}
	return files, nextIndex(version, header.Get("X-Consul-Index")), nil
}

// nextIndex returns the index to wait for. One that is lower than the last, after a restore of the
// server, or not above 0, must be forgotten.
func nextIndex(last, next string) string {
	before, _ := strconv.ParseUint(last, 10, 64)
	if n, err := strconv.ParseUint(next, 10, 64); err != nil || n == 0 || n < before {
		return ""
	}
	return next
}
