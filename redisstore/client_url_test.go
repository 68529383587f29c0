package redisstore

import (
	"slices"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
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
		{url: "redis://a:b:c@h", addresses: []string{"h:6379"}, user: "a", password: "b:c"},
		{url: "redis://u:p@ss@h", addresses: []string{"h:6379"}, user: "u", password: "p@ss"},
		{url: "redis://h?tls=true", addresses: []string{"h:6379"}, secure: true},
		{url: "redis://h?tls=false", addresses: []string{"h:6379"}},
		{url: "unix:///a%20b.sock", addresses: []string{"/a b.sock"}},
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

func TestParseURLRejectsBadURLs(t *testing.T) {
	for url, want := range map[string]string{
		"localhost:6379":                       "redis://localhost:6379",
		"http://h":                             `scheme "http"`,
		"redis://h/first":                      `database "first"`,
		"redis://h/-1":                         `database "-1"`,
		"redis://h:port":                       "a port from 1 to 65535",
		"redis://h:0":                          "a port from 1 to 65535",
		"redis://h:65536":                      "a port from 1 to 65535",
		"redis://a,b":                          "redis-cluster or redis-sentinel",
		"redis://h?tls=1":                      "want true or false",
		"redis://h?tls=":                       "want true or false",
		"redis://h?tsl=true":                   `"tsl": want one of tls`,
		"redis://h?ca=/etc/ca.pem":             "only allowed with tls=true",
		"redis://h?verify_hostname=false":      "only allowed with tls=true",
		"rediss://h?verify_hostname=no":        "want true or false",
		"redis://h?db=1":                       `"db": want one of tls`,
		"redis://h?tls=true&cert=/none":        "cert and key",
		"redis://h?a=%zz":                      "name=value",
		"redis://h/%zz":                        "two hexadecimal digits",
		"rediss://h?tls=false":                 "contradicts rediss",
		"rediss://h?ca=/none/at/all":           "no such file",
		"unix://run/redis.sock":                "unix:///run/redis.sock",
		"unix://":                              "unix:///run/redis.sock",
		"redis-sentinel://h":                   "name of a master",
		"redis-sentinel://h/main/x1":           `database "x1"`,
		"redis-cluster://h/1":                  "only database 0",
		"redis-cluster://a,,b":                 "is empty",
		"redis-cluster://a?sentinel_user=x":    `"sentinel_user": want one of`,
		"redis://u:sec%zzret@h/0":              "two hexadecimal digits",
		"redis://u:zzr/et@h":                   "%2F",
		"redis://u:zzr?et@h":                   "%3F",
		"redis://u:a?zz=et@h":                  "%3F",
		"redis://u:zzr#et@h":                   "%23",
		"redis://u:zzret":                      "a port from 1 to 65535",
		"redis://u:zzret@h:zzr":                "a port from 1 to 65535",
		"redis-sentinel://h/m?password=zzret":  `"password": want one of`,
		"redis-sentinel://h/m?sentinel_user=;": "name=value",
	} {
		_, err := parseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "redisstore: bad URL: ") {
			t.Errorf("%s: got error %v, want one with %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "zz") {
			t.Errorf("%s: error %v shows a part of the password", url, err)
		}
	}
}

// Every URL is parsed or rejected, and an error never shows the password.
func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{
		"redis://u:p@h:1/2?tls=true", "unix:///s?db=1", "redis-sentinel://a,b/m/3", "redis-cluster://[::1]:7,b?ca=x", "rediss://@:%", "redis://#@?/",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, url string) {
		o, err := parseURL(url)
		if err == nil && len(o.InitAddress) == 0 {
			t.Errorf("%q: no error, and no address", url)
		}
		secret := "zq9" + strings.Map(func(r rune) rune {
			if r < '0' || r > 'z' {
				return -1
			}
			return r
		}, url)
		_, err = parseURL("redis://u:" + secret + "@h:" + url)
		if err != nil && strings.Contains(err.Error(), "zq9") {
			t.Errorf("a URL with password %q: error %q shows it", secret, err)
		}
	})
}
