package server_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server"
	"github.com/penstock-io/penstock/server/callers"
)

func TestLoadConfigDefaults(t *testing.T) {
	c, err := server.LoadConfig(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, same := range map[string]bool{
		"store":     c.Store == "memory:",
		"grpc":      c.GRPC.Addr == ":8081",
		"http":      c.HTTP.Addr == ":8080",
		"resp":      c.RESP.Addr == ":6380",
		"admin":     c.Admin.Addr == "127.0.0.1:6070",
		"log level": c.LogLevel == slog.LevelInfo,
		"grace":     c.ShutdownGrace == 10*time.Second,
		"bytes":     c.MaxBytes == 1<<30,
	} {
		if !same {
			t.Errorf("wrong default of %s: %+v", what, c)
		}
	}
}

func TestLoadConfigPrecedence(t *testing.T) {
	file := write(t, "penstock.yaml", "max-keys: 1\nmax-connections: 1\nredis-timeout: 1s\nhttp: ':1'\n")
	env := []string{"PENSTOCK_CONFIG=" + file, "PENSTOCK_MAX_KEYS=2", "PENSTOCK_MAX_CONNECTIONS=2", "HOME=/"}
	c, err := server.LoadConfig(map[string]string{"max-keys": "3"}, env)
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxKeys != 3 || c.MaxConnections != 2 || c.RedisTimeout != time.Second || c.HTTP.Addr != ":1" || c.GRPC.Addr != ":8081" {
		t.Errorf("got %+v", c)
	}
}

// Every setting can be set in all three ways, and changes the configuration.
func TestLoadConfigSettingsFromFlagEnvAndFile(t *testing.T) {
	examples := map[string]string{
		"number": "7", "size": "7MiB", "duration": "7s", "address": "127.0.0.1:7", "level": "debug", "format": "json",
		"url": "redis://seven", "path": "seven", "text": "seven", "form": "github", "": "true", "file": "",
		"names": "X-Limit,X-Remaining,X-Reset", "directory": "seven", "mode": "", "limit": "7/s", "fraction": "0.7", "networks": "10.0.0.0/8",
	}
	for _, s := range server.Settings {
		value, known := examples[s.Kind]
		if !known {
			t.Errorf("%s: no example of a %q", s.Name, s.Kind)
		}
		if n := len(s.Values); s.Kind == "mode" && n > 0 {
			value = s.Values[n-1]
		}
		if s.Name == "rules-xds" {
			value = "grpc://seven:18000?node=7"
		}
		if value == "" || s.Name == "resp-auth" || s.Name == "home" || s.Name == "regions" {
			continue // needs other settings; covered below, and by TestRegionsNeedAHome
		}
		if s.Default == "true" {
			value = "false"
		}
		byFlag, err := server.LoadConfig(map[string]string{s.Name: value}, nil)
		if err != nil {
			t.Errorf("--%s %s: %v", s.Name, value, err)
			continue
		}
		byEnv, err := server.LoadConfig(nil, []string{s.Env() + "=" + value})
		if err != nil {
			t.Errorf("%s=%s: %v", s.Env(), value, err)
			continue
		}
		byFile, err := server.LoadConfig(nil, []string{"PENSTOCK_CONFIG=" + write(t, "c.yaml", s.Name+": "+value+"\n")})
		if err != nil {
			t.Errorf("%s: %s in the file: %v", s.Name, value, err)
			continue
		}
		unset, err := server.LoadConfig(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*server.Config{byFlag, byEnv, byFile, unset} {
			c.Origins = nil
		}
		if !reflect.DeepEqual(byFlag, byEnv) || !reflect.DeepEqual(byFlag, byFile) || reflect.DeepEqual(byFlag, unset) {
			t.Errorf("%s: by flag %+v, by variable %+v, by file %+v, unset %+v", s.Name, *byFlag, *byEnv, *byFile, *unset)
		}
	}
}

func TestLoadConfigErrorsNameTheSetting(t *testing.T) {
	empty := write(t, "empty", "\n")
	for _, c := range []struct {
		name  string
		flags map[string]string
		env   []string
		file  string
		want  string
	}{
		{name: "no fraction", flags: map[string]string{"request-limits-share": "NaN"}, want: `--request-limits-share: "NaN": want a fraction like 0.5, above 0 and at most 1`},
		{name: "unknown mode", flags: map[string]string{"on-store-failure": "panic"}, want: `--on-store-failure: "panic": want local or allow or deny`},
		{name: "cert alone in the file", file: "http-tls-cert: c\n", want: "c.yaml:1: http-tls-cert without --http-tls-key: want both"},
		{name: "YAML error below the first line", file: "http: ':1'\nresp: ':2\n", want: "c.yaml:2: yaml: found unexpected end of stream"},
		{name: "no nodes", flags: map[string]string{"nodes": "0"}, want: `--nodes: "0": want a whole number above zero`},
		{name: "misspelt variable", env: []string{"PENSTOCK_HTPP=:1"}, want: "PENSTOCK_HTPP: no such setting; the nearest is PENSTOCK_HTTP"},
		{name: "misspelt in the file", file: "store: 'memory:'\nmax_keys: 3\n", want: "c.yaml:2: max_keys: no such setting; the nearest is max-keys"},
		{name: "bad value in a variable", env: []string{"PENSTOCK_MAX_KEYS=many"}, want: `PENSTOCK_MAX_KEYS: "many": want a whole number above zero`},
		{name: "bad value in the file", file: "redis-timeout: soon\n", want: `c.yaml:1: redis-timeout: "soon": want a duration like 500ms or 10s`},
		{name: "set twice", file: "http: ':1'\nhttp: ':2'\n", want: "c.yaml:2: http: is set twice, first at "},
		{name: "no value", file: "http:\n", want: `c.yaml:1: http: has no value; write "" for an empty one`},
		{name: "a list", file: "http: [':1', ':2']\n", want: "c.yaml:1: http: want a single value"},
		{name: "not a mapping", file: "just words\n", want: "c.yaml:1: want a mapping of settings"},
		{name: "not YAML", file: "http: ':1\n", want: "c.yaml:1: yaml: "},
		{name: "config file in the config file", file: "config: other.yaml\n", want: "c.yaml:1: config: cannot be set in the config file"},
		{name: "huge", file: "# " + strings.Repeat("#", 1<<20), want: "c.yaml: is larger than 1048576 bytes"},
		{name: "no file", flags: map[string]string{"config": "/nowhere"}, want: "config file /nowhere: no such file or directory"},
		{name: "no port", flags: map[string]string{"http": "8080"}, want: `--http: "8080": want an address like`},
		{name: "impossible port", flags: map[string]string{"http": ":80800"}, want: `--http: ":80800": want a port from 0 to 65535`},
		{name: "zero", flags: map[string]string{"redis-timeout": "0s"}, want: `--redis-timeout: "0s": want more than zero`},
		{name: "negative", flags: map[string]string{"shutdown-grace": "-1s"}, want: `--shutdown-grace: "-1s": want a duration`},
		{name: "size", flags: map[string]string{"max-bytes": "1GB"}, want: `--max-bytes: "1GB": want a size like 512MiB or 1GiB`},
		{name: "size overflows", flags: map[string]string{"max-bytes": "9007199254740993KiB"}, want: "want a size like"},
		{name: "switch", flags: map[string]string{"shadow": "perhaps"}, want: `--shadow: "perhaps": want true or false`},
		{name: "level", flags: map[string]string{"log-level": "loud"}, want: `--log-level: "loud": want debug, info, warn or error`},
		{name: "prefix", flags: map[string]string{"redis-prefix": "my.app."}, want: `--redis-prefix: "my.app.": want letters, digits and : _ - / only`},
		{name: "format", flags: map[string]string{"log-format": "xml"}, want: `--log-format: "xml": want text or json`},
		{name: "store", flags: map[string]string{"store": "memcached://root:secret@db"}, want: `--store: scheme "memcached": want memory:`},
		{name: "memory without colon", flags: map[string]string{"store": "memory"}, want: "--store: want memory: without a path"},
		{name: "memory with a path", flags: map[string]string{"store": "memory:secret"}, want: "--store: want memory: without a path"},
		{name: "no listener", flags: map[string]string{"grpc": "", "http": "", "resp": "", "admin": ""}, want: "no listener enabled"},
		{name: "quotas without gRPC", flags: map[string]string{"rlqs": "true", "grpc": ""}, want: "--rlqs: requires --grpc"},
		{name: "cert alone", flags: map[string]string{"http-tls-cert": "c"}, want: "--http-tls-cert without --http-tls-key: want both"},
		{name: "key alone", flags: map[string]string{"resp-tls-key": "k"}, want: "--resp-tls-key without --resp-tls-cert: want both"},
		{name: "client ca alone", flags: map[string]string{"grpc-tls-client-ca": "a"}, want: "--grpc-tls-client-ca without --grpc-tls-cert"},
		{name: "proxies", flags: map[string]string{"trusted-proxies": "10.0.0.0/8,proxy.example"}, want: `--trusted-proxies: "proxy.example": want an address, a network like 10.0.0.0/8, or private`},
		{name: "network too long", flags: map[string]string{"trusted-proxies": "10.0.0.0/33"}, want: `--trusted-proxies: "10.0.0.0/33": want an address`},
		{name: "proxy with a zone", flags: map[string]string{"trusted-proxies": "fe80::1%eth0"}, want: `--trusted-proxies: "fe80::1%eth0": want an address`},
		{name: "two tokens", flags: map[string]string{"token": "t", "token-file": empty}, want: "--token and --token-file: want one of them"},
		{name: "empty token", flags: map[string]string{"token-file": empty}, want: "empty is empty"},
		{name: "auth without token", flags: map[string]string{"resp-auth": "true"}, want: "--resp-auth: requires --token-file"},
		{name: "two names", flags: map[string]string{"envoy-header-names": "A,B"}, want: "want three names with commas between them"},
		{name: "bad name", flags: map[string]string{"envoy-header-names": "A,B,C: d"}, want: "want three names with commas between them"},
		{name: "form", flags: map[string]string{"headers": "x"}, want: `--headers: httplimit: bad header form: "x": want one of ietf`},
		{name: "no token", flags: map[string]string{"token-file": "/nowhere"}, want: "--token-file: open /nowhere"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.file != "" {
				c.env = append(c.env, "PENSTOCK_CONFIG="+write(t, "c.yaml", c.file))
			}
			_, err := server.LoadConfig(c.flags, c.env)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error contains a password: %q", err)
			}
		})
	}
}

func TestLoadConfigParsesTrustedProxies(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "[]",
		"10.0.0.0/8":                      "[10.0.0.0/8]",
		" 203.0.113.7 , 2001:db8::7, ":    "[203.0.113.7/32 2001:db8::7/128]",
		"private,203.0.113.0/24":          "[127.0.0.0/8 ::1/128 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 203.0.113.0/24]",
		"::ffff:10.0.0.0/104,::ffff:10.1": "",
	} {
		c, err := server.LoadConfig(map[string]string{"trusted-proxies": text}, nil)
		if want == "" {
			if err == nil {
				t.Errorf("%q: got %v, want an error", text, c.TrustedProxies)
			}
			continue
		}
		if err != nil || fmt.Sprint(c.TrustedProxies) != want {
			t.Errorf("%q: got %v, %v, want %s", text, c, err, want)
		}
	}
}

func TestLoadConfigReadsTokenFile(t *testing.T) {
	for text, want := range map[string][]callers.Token{
		"open sesame\n":                         {{Secret: "open sesame"}},
		"ada:s1\n\n# comment\r\nbob@ops: s2 \n": {{Name: "ada", Secret: "s1"}, {Name: "bob@ops", Secret: "s2"}},
		"a b:c":                                 {{Secret: "a b:c"}},
		"ada:":                                  {{Secret: "ada:"}},
		":x":                                    {{Secret: ":x"}},
		"a:b:c":                                 {{Name: "a", Secret: "b:c"}},
		"s1\nada:s2":                            {{Secret: "s1"}, {Name: "ada", Secret: "s2"}},
	} {
		c, err := server.LoadConfig(map[string]string{"token-file": write(t, "token", text)}, nil)
		if err != nil || !slices.Equal(c.Tokens, want) || !c.HasToken() {
			t.Errorf("%q: got %v, %v, want %v", text, c, err, want)
		}
	}
	for text, want := range map[string]string{
		"":               "is empty",
		"# only\n":       "is empty",
		"ada:s1\nada:s2": `two tokens have the name "ada"`,
		"ada:s\nbob:s":   "same token",
	} {
		path := write(t, "token", text)
		_, err := server.LoadConfig(map[string]string{"token-file": path}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "--token-file: "+path) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s1") {
			t.Errorf("the error has a token: %v", err)
		}
	}
}

// A client sends the first line as it is. The server accepts it, whether it is a token
// with a colon or a token with a name.
func TestReadTokenReturnsTheFirstLine(t *testing.T) {
	token, err := server.ReadToken(write(t, "token", "# for operators\nada:s1\nbob:s2\n"))
	if err != nil || token != "ada:s1" {
		t.Errorf("got %q, %v, want ada:s1", token, err)
	}
}

// Kubernetes sets variables for every service, and one may be named penstock.
func TestLoadConfigIgnoresKubernetesServiceLinks(t *testing.T) {
	links := []string{
		"PENSTOCK_SERVICE_HOST=10.0.0.1", "PENSTOCK_SERVICE_PORT=8081", "PENSTOCK_SERVICE_PORT_GRPC=8081",
		"PENSTOCK_PORT=tcp://10.0.0.1:8081", "PENSTOCK_PORT_8081_TCP=tcp://10.0.0.1:8081",
		"PENSTOCK_PORT_8081_TCP_ADDR=10.0.0.1", "PENSTOCK_HTTP_SERVICE_HOST=10.0.0.2", "PENSTOCK_HTTP_PORT=tcp://10.0.0.2:80",
	}
	if _, err := server.LoadConfig(nil, links); err != nil {
		t.Error(err)
	}
	_, err := server.LoadConfig(nil, []string{"PENSTOCK_HTTP_PORT=8080"})
	if err == nil || !strings.Contains(err.Error(), "the nearest is PENSTOCK_HTTP") {
		t.Errorf("misspelt port variable: %v", err)
	}
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
