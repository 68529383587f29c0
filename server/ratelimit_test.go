package server_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server"
	"github.com/penstock-io/penstock/server/envoy/ratelimit"
	"github.com/penstock-io/penstock/server/envoy/xds"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

func loadRatelimit(t *testing.T, environ ...string) *server.Config {
	t.Helper()
	c, err := server.LoadRatelimitConfig(nil, environ)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRatelimitVariablesAreAllKnown(t *testing.T) {
	names := ratelimit.Variables()
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) != 121 || len(sorted) != len(names) {
		t.Errorf("%d variables, %d without duplicates, want 121", len(names), len(sorted))
	}
	text, err := os.ReadFile(filepath.Join("..", "docs", "migrating.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !regexp.MustCompile("`" + name + "`").Match(text) {
			t.Errorf("docs/migrating.md does not tell what %s does", name)
		}
	}
}

func TestRatelimitConfigHasDefaultsOfThatService(t *testing.T) {
	c := loadRatelimit(t, "PATH=/bin")
	for what, same := range map[string]bool{
		"http":   c.HTTP.Addr == "0.0.0.0:8080",
		"grpc":   c.GRPC.Addr == "0.0.0.0:8081",
		"admin":  c.Admin.Addr == "0.0.0.0:6070",
		"resp":   c.RESP.Addr == "",
		"compat": c.Compat == "envoy",
		"store":  c.Store == "unix:///var/run/nutcracker/ratelimit.sock",
		"rules":  c.Rules == "/srv/runtime_data/current/config",
		"level":  c.LogLevel.String() == "WARN",
		"cache":  !c.DenyCache,
	} {
		if !same {
			t.Errorf("wrong default of %s: %+v", what, c)
		}
	}
}

func TestRatelimitConfigReadsVariables(t *testing.T) {
	for _, c := range []struct {
		environ string
		is      func(*server.Config) bool
	}{
		{"HOST=::,GRPC_HOST=::,PORT=81", func(c *server.Config) bool { return c.HTTP.Addr == "[::]:81" && c.GRPC.Addr == "[::]:8081" }},
		{"GRPC_UDS=/run/r.sock", func(c *server.Config) bool { return c.GRPC.Addr == "unix:/run/r.sock" }},
		{"REDIS_SOCKET_TYPE=tcp,REDIS_URL=redis:6379", func(c *server.Config) bool { return c.Store == "redis://redis:6379" }},
		{"REDIS_SOCKET_TYPE=tcp,REDIS_URL=redis:6379,REDIS_AUTH=p@ss/w", func(c *server.Config) bool { return c.Store == "redis://:p%40ss%2Fw@redis:6379" }},
		{"REDIS_SOCKET_TYPE=tcp,REDIS_URL=redis://u:p@redis:6379/2", func(c *server.Config) bool { return c.Store == "redis://u:p@redis:6379/2" }},
		{"REDIS_SOCKET_TYPE=tcp,REDIS_URL=redis://:old@redis:6379,REDIS_AUTH=p", func(c *server.Config) bool { return c.Store == "redis://:p@redis:6379" }},
		{"REDIS_URL=/run/redis.sock,REDIS_AUTH=u:p", func(c *server.Config) bool { return c.Store == "unix://u:p@/run/redis.sock" }},
		{"REDIS_TYPE=sentinel,REDIS_URL=mine;h1:1;h2:2,REDIS_SENTINEL_AUTH=s", func(c *server.Config) bool {
			return c.Store == "redis-sentinel://h1:1,h2:2/mine?sentinel_password=s&sentinel_user="
		}},
		{"REDIS_TYPE=CLUSTER,REDIS_URL=h1:1;h2:2,REDIS_TLS=true,REDIS_TLS_CACERT=/ca", func(c *server.Config) bool { return c.Store == "redis-cluster://h1:1,h2:2?ca=%2Fca&tls=true" }},
		{"REDIS_SOCKET_TYPE=tcp,REDIS_URL=h:1,REDIS_TLS=true,REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true", func(c *server.Config) bool { return c.Store == "redis://h:1?tls=true&verify_hostname=false" }},
		{"GRPC_SERVER_USE_TLS=true,GRPC_SERVER_TLS_CERT=/c,GRPC_SERVER_TLS_KEY=/k,GRPC_CLIENT_TLS_CACERT=/a,GRPC_CLIENT_TLS_SAN=envoy", func(c *server.Config) bool {
			return c.GRPC.ClientCA == "/a" && c.GRPC.ClientSAN == "envoy"
		}},
		{"LOG_LEVEL=WARNING,LOG_FORMAT=json", func(c *server.Config) bool { return c.LogLevel.String() == "WARN" && c.LogFormat == "json" }},
		{"LOG_FORMAT=JSON", func(c *server.Config) bool { return c.LogFormat == "json" && len(c.Ratelimit.Notes) == 0 }},
		{"LOG_FORMAT=plain", func(c *server.Config) bool { return c.LogFormat == "text" && len(c.Ratelimit.Notes) == 1 }},
		{"REDIS_TIMEOUT=0", func(c *server.Config) bool { return c.RedisTimeout == time.Second && len(c.Ratelimit.Notes) == 1 }},
		{"REDIS_TIMEOUT=0s", func(c *server.Config) bool { return c.RedisTimeout == time.Second && len(c.Ratelimit.Notes) == 1 }},
		{"REDIS_TIMEOUT=70ms", func(c *server.Config) bool { return c.RedisTimeout == 70*time.Millisecond }},
		{"NEAR_LIMIT_RATIO=1.5", func(c *server.Config) bool { return c.Ratelimit.Stats.NearLimitRatio == 1 }},
		{"NEAR_LIMIT_RATIO=0.5", func(c *server.Config) bool { return c.Ratelimit.Stats.NearLimitRatio == 0.5 }},
		{"EXTRA_TAGS=kube-cluster:x;a.b/c:y;1st:z;a-b:1,USE_PROMETHEUS=true", func(c *server.Config) bool { return len(c.Ratelimit.Stats.Tags) == 4 }},
		{"EXTRA_TAGS=domain:x;a-b:1;a.b:2;__c:3", func(c *server.Config) bool { return len(c.Ratelimit.Stats.Tags) == 4 }},
		{"USE_PROMETHEUS=true,EXTRA_TAGS=domain:x;a-b:1;a.b:2;__c:3;le:4;d:5", func(c *server.Config) bool {
			return len(c.Ratelimit.Notes) == 4 && slices.Equal(c.Ratelimit.Stats.Tags, []ratelimit.Tag{{Name: "a-b", Value: "1"}, {Name: "d", Value: "5"}})
		}},
		{"EXTRA_TAGS=a:1;b:2;a:3", func(c *server.Config) bool {
			return slices.Equal(c.Ratelimit.Stats.Tags, []ratelimit.Tag{{Name: "b", Value: "2"}, {Name: "a", Value: "3"}})
		}},
		{"LOG_LEVEL=fatal", func(c *server.Config) bool { return c.LogLevel.String() == "ERROR" }},
		{"RUNTIME_ROOT=/data,RUNTIME_SUBDIRECTORY=ratelimit", func(c *server.Config) bool { return c.Rules == "/data/ratelimit/config" }},
		{"CONFIG_TYPE=GRPC_XDS_SOTW", func(c *server.Config) bool {
			return c.Rules == "" && reflect.DeepEqual(c.RulesXDS, &xds.Config{Addr: "localhost:18000", Node: "default", Wait: true})
		}},
		{"CONFIG_TYPE=GRPC_XDS_SOTW,CONFIG_GRPC_XDS_SERVER_URL=dns:///eg:18001,CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit,CONFIG_GRPC_XDS_SERVER_USE_TLS=true," +
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/tls.crt,CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/tls.key,CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/ca.crt,CONFIG_GRPC_XDS_SERVER_TLS_SAN=eg.svc," +
			"CONFIG_GRPC_XDS_NODE_METADATA=a=b;c=d,CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=x:y;z:&,FORCE_START_WITHOUT_INITIAL_CONFIG=true", func(c *server.Config) bool {
			return reflect.DeepEqual(c.RulesXDS, &xds.Config{
				Addr: "eg:18001", Node: "envoy-ratelimit", TLS: true, Cert: "/tls.crt", Key: "/tls.key", CA: "/ca.crt", ServerName: "eg.svc",
				Metadata: map[string]string{"a": "b", "c": "d"}, Headers: map[string]string{"x": "y", "z": "&"},
			})
		}},
		{"CONFIG_TYPE=GRPC_XDS_SOTW,CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/unused", func(c *server.Config) bool { return c.RulesXDS.Cert == "" }},
		{"SHADOW_MODE=true,QUOTA_MODE=true,MERGE_DOMAIN_CONFIG=true", func(c *server.Config) bool { return c.Shadow && c.Ratelimit.QuotaMode && c.MergeDomains }},
		{"LIMIT_RESPONSE_HEADERS_ENABLED=true,LIMIT_RESET_HEADER=X-Reset", func(c *server.Config) bool {
			return c.EnvoyHeaders && c.EnvoyHeaderNames == [3]string{"RateLimit-Limit", "RateLimit-Remaining", "X-Reset"}
		}},
		{"LOCAL_CACHE_SIZE_IN_BYTES=1000", func(c *server.Config) bool { return c.DenyCache && c.Ratelimit.LocalCacheBytes == 1000 }},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", func(c *server.Config) bool { return c.Compat == "envoy" && c.Ratelimit.StopIncrement }},
		{"GRPC_MAX_CONNECTION_AGE=5m", func(c *server.Config) bool { return c.Ratelimit.ConnectionAge == 5*time.Minute }},
		{"USE_PROMETHEUS=true,USE_STATSD=false,PROMETHEUS_ADDR=:19001", func(c *server.Config) bool {
			return c.Ratelimit.Stats.PrometheusAddr == ":19001" && c.Ratelimit.Stats.PrometheusPath == "/metrics"
		}},
		{"EXTRA_TAGS=a:b;c:d:e", func(c *server.Config) bool {
			return slices.Equal(c.Ratelimit.Stats.Tags, []ratelimit.Tag{{Name: "a", Value: "b"}, {Name: "c", Value: "d:e"}})
		}},
		{"PENSTOCK_COMPAT=,PENSTOCK_RESP=:7", func(c *server.Config) bool { return c.Compat == "" && c.RESP.Addr == ":7" }},
	} {
		environ := strings.NewReplacer(",", "\n", ";", ",").Replace(c.environ)
		if config := loadRatelimit(t, strings.Split(environ, "\n")...); !c.is(config) {
			t.Errorf("%s: got %+v with %+v", c.environ, config, config.Ratelimit)
		}
	}
}

func TestRatelimitConfigRefusesWithWayOut(t *testing.T) {
	for environ, want := range map[string]string{
		"BACKEND_TYPE=memcache": "set BACKEND_TYPE=redis and REDIS_URL",
		"CONFIG_TYPE=OTHER":     "want FILE or GRPC_XDS_SOTW",
		"GRPC_CLIENT_TLS_SAN=a": "GRPC_CLIENT_TLS_CACERT",
		"REDIS_TYPE=other":      "want SINGLE, SENTINEL or CLUSTER",
		"USE_STATSD=maybe":      "want true or false",
		"CACHE_KEY_PREFIX=":     "",
		"CACHE_KEY_PREFIX=a.b":  `CACHE_KEY_PREFIX: "a.b": want letters, digits`,
		"CACHE_KEY_PREFIX={a}":  `CACHE_KEY_PREFIX: "{a}": want letters, digits`,
		"NEAR_LIMIT_RATIO=-1":   "want a fraction",
		"NEAR_LIMIT_RATIO=NaN":  "want a fraction",
		"REDIS_TIMEOUT=-1s":     "REDIS_TIMEOUT",
		"REDIS_TIMEOUT=10":      "REDIS_TIMEOUT",
		"EXTRA_TAGS=a":          "want name:value",
		"EXTRA_TAGS=:a":         "want name:value",
		"LOG_LEVEL=loud":        "LOG_LEVEL",
	} {
		_, err := server.LoadRatelimitConfig(nil, []string{environ})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", environ, err, want)
		}
	}
	for environ, want := range map[string]string{
		"REDIS_SOCKET_TYPE=tcp,REDIS_URL=rediss://:secret@redis:6379":     "REDIS_URL: want host:port",
		"REDIS_SOCKET_TYPE=tcp,REDIS_URL=redis://:secret@redis:6379?db=1": "REDIS_URL: want host:port",
		"REDIS_TYPE=SENTINEL,REDIS_URL=mymaster":                          "a master's name",
		"REDIS_TYPE=CLUSTER,REDIS_URL=redis://h1:1":                       "REDIS_URL: want host:port",
		"GRPC_SERVER_USE_TLS=true":                                        "want GRPC_SERVER_TLS_CERT",
		"GRPC_SERVER_USE_TLS=true,GRPC_SERVER_TLS_CERT=/c":                "grpc-tls-key: want both",
		"USE_PROMETHEUS=true,PROMETHEUS_ADDR=metrics":                     "PROMETHEUS_ADDR",
		"USE_PROMETHEUS=true,PROMETHEUS_ADDR=unix:/metrics":               "PROMETHEUS_ADDR",
		"USE_PROMETHEUS=true,PROMETHEUS_PATH=/{metrics":                   "PROMETHEUS_PATH",
		"LIMIT_REQUEST_HEADERS_ENABLED=1,LIMIT_REQUEST_RESET_HEADER=a b":  "LIMIT_REQUEST_RESET_HEADER",
	} {
		_, err := server.LoadRatelimitConfig(nil, strings.Split(environ, ","))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %q", environ, err, want)
		}
	}
	_, err := server.LoadRatelimitConfig(nil, []string{"USE_STATSD=true", "USE_PROMETHEUS=true"})
	if err == nil || !strings.Contains(err.Error(), "at most one") {
		t.Errorf("two kinds of statistics: got %v", err)
	}
}

func TestRatelimitConfigRefusesWrongXDSVariables(t *testing.T) {
	for environ, want := range map[string]string{
		"CONFIG_GRPC_XDS_SERVER_URL=":                       "",
		"CONFIG_GRPC_XDS_SERVER_URL=a b":                    "CONFIG_GRPC_XDS_SERVER_URL: want a URL",
		"CONFIG_GRPC_XDS_NODE_METADATA=a":                   "CONFIG_GRPC_XDS_NODE_METADATA: want name=value",
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=secret":  "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: want name:value",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=maybe":              "want true or false",
		"PENSTOCK_RULES=/rules":                             "PENSTOCK_RULES and CONFIG_GRPC_XDS_SERVER_URL: want one of them",
		"PENSTOCK_RULES_XDS=grpc://h?header=secret:1&cert=": "",
	} {
		_, err := server.LoadRatelimitConfig(nil, []string{"CONFIG_TYPE=GRPC_XDS_SOTW", environ})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: got %v, want %q", environ, err, want)
		}
	}
}

// A variable without effect is told of in one line that says why, unless its value is what
// happens anyway.
func TestRatelimitConfigNotesVariablesWithoutEffect(t *testing.T) {
	c := loadRatelimit(t, "TRACING_ENABLED=true", "REDIS_PERSECOND=true", "REDIS_POOL_SIZE=5", "RUNTIME_WATCH_ROOT=false", "RUNTIME_IGNOREDOTFILES=true", "XDS_CLIENT_BACKOFF_JITTER=true")
	want := []string{"REDIS_PERSECOND", "REDIS_POOL_SIZE", "RUNTIME_WATCH_ROOT", "TRACING_ENABLED", "XDS_CLIENT_BACKOFF_JITTER"}
	var got []string
	for _, note := range c.Ratelimit.Notes {
		name, reason, ok := strings.Cut(note, " has no effect: ")
		if !ok || reason == "" {
			t.Errorf("%q does not say why", note)
		}
		got = append(got, name)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("notes about %q, want %q", got, want)
	}
}

// Connections end after that time, so that they spread over new replicas.
func TestRatelimitConnectionsEndAtTheirAge(t *testing.T) {
	t.Parallel()
	d := startRatelimit(t, statsdRules, "DISABLE_STATS=true", "GRPC_MAX_CONNECTION_AGE=20ms", "GRPC_MAX_CONNECTION_AGE_GRACE=1m")
	conn := dialGRPC(t, d, nil)
	if _, err := shouldRateLimit(conn, "42"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if !conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Errorf("a connection is open after %v", testTimeout)
	}
}

func TestRatelimitServesOnUnixSocket(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	startRatelimit(t, statsdRules, "DISABLE_STATS=true", "GRPC_UDS="+path)
	requestBySocket(t, path)
}

// socketPath returns a path for a socket: those of tests are too long.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "uds")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func requestBySocket(t *testing.T, path string) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := shouldRateLimit(conn, "42"); err != nil {
		t.Error(err)
	}
}

// A second server must not take the socket of a running one, which then no client would reach,
// but only one that a killed process left behind.
func TestServerLeavesSocketOfRunningServer(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	settings := map[string]string{"grpc": "unix:" + path, "rules": writeRules(t, shopRules)}
	first := start(t, settings)
	if _, err := server.New(t.Context(), load(t, settings), nil); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a second server on the same socket: got %v, want an address in use", err)
	}
	requestBySocket(t, path)
	first.end()

	killed, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	killed.SetUnlinkOnClose(false)
	if err := killed.Close(); err != nil {
		t.Fatal(err)
	}
	start(t, settings)
	requestBySocket(t, path)
}

// HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED keeps traffic away until a domain is loaded, and not only until a
// folder was read. Duplicates, which that service ignores, keep no rules away.
func TestRatelimitHealthFollowsItsDomains(t *testing.T) {
	t.Parallel()
	const domain = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5}}]\n"
	for name, c := range map[string]struct {
		files    []string
		variable string
		code     int
	}{
		"no file":            {nil, "true", http.StatusInternalServerError},
		"no file, unwatched": {nil, "false", http.StatusOK},
		"broken":             {[]string{"descriptors: []"}, "true", http.StatusInternalServerError},
		"a domain":           {[]string{domain}, "true", http.StatusOK},
		"two documents":      {[]string{domain + "---\ndomain: other\n"}, "true", http.StatusOK},
		"a field twice":      {[]string{"domain: other\n" + domain}, "true", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "config"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, "config", "rules.yaml"), []byte(seal(text)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			config, err := server.LoadRatelimitConfig(map[string]string{"store": "memory:"}, []string{
				"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "DISABLE_STATS=true",
				"RUNTIME_ROOT=" + dir, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=" + c.variable,
			})
			if err != nil {
				t.Fatal(err)
			}
			d := startConfig(t, config)
			if code, text := get(t, "http://"+d.addr("http")+"/healthcheck"); code != c.code {
				t.Errorf("got %d %s, want %d", code, text, c.code)
			}
		})
	}
}
