package redisstore

import (
	"slices"
	"strings"
	"testing"
)

func TestURLs(t *testing.T) {
	for _, c := range []struct {
		url            string
		addresses      []string
		user, password string
		database       int
		master         string
		secure         bool
	}{
		{url: "redis://localhost", addresses: []string{"localhost:6379"}},
		{url: "redis://", addresses: []string{"localhost:6379"}},
		{url: "redis://h:1234/5", addresses: []string{"h:1234"}, database: 5},
		{url: "redis://[::1]:1234", addresses: []string{"[::1]:1234"}},
		{url: "redis://[::1]", addresses: []string{"[::1]:6379"}},
		{url: "redis://me:p%40ss%2Fword@h", addresses: []string{"h:6379"}, user: "me", password: "p@ss/word"},
		{url: "redis://:secret@h", addresses: []string{"h:6379"}, password: "secret"},
		{url: "rediss://h", addresses: []string{"h:6379"}, secure: true},
		{url: "unix:///run/redis.sock?db=2", addresses: []string{"/run/redis.sock"}, database: 2},
		{url: "unix://me:pw@/run/redis.sock", addresses: []string{"/run/redis.sock"}, user: "me", password: "pw"},
		{url: "redis-sentinel://a,b:1,c/main/3", addresses: []string{"a:26379", "b:1", "c:26379"}, master: "main", database: 3},
		{url: "redis-sentinel://u:p@a/main?tls=true", addresses: []string{"a:26379"}, master: "main", user: "u", password: "p", secure: true},
		{url: "redis-cluster://a:7000,b:7001", addresses: []string{"a:7000", "b:7001"}},
		{url: "redis-cluster://a?tls=true", addresses: []string{"a:6379"}, secure: true},
	} {
		o, err := parseURL(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if !slices.Equal(o.InitAddress, c.addresses) || o.Username != c.user || o.Password != c.password ||
			o.SelectDB != c.database || o.Sentinel.MasterSet != c.master || (o.TLSConfig != nil) != c.secure {
			t.Errorf("%s: got %v %q %q %d %q %v, want %+v", c.url,
				o.InitAddress, o.Username, o.Password, o.SelectDB, o.Sentinel.MasterSet, o.TLSConfig != nil, c)
		}
	}
}

func TestBadURLs(t *testing.T) {
	for url, want := range map[string]string{
		"localhost:6379":             "redis://localhost:6379",
		"http://h":                   `scheme "http"`,
		"redis://h/first":            `database "first"`,
		"redis://h/-1":               `database "-1"`,
		"redis-sentinel://h":         "name of a master",
		"redis-cluster://h/1":        "only database 0",
		"redis://u:sec%zzret@h/0":    "bad URL",
		"redis-sentinel://h/main/x1": `database "x1"`,
	} {
		_, err := parseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one with %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "zzret") {
			t.Errorf("%s: error %v shows the password", url, err)
		}
	}
}
