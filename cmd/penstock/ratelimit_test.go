package main

import (
	"slices"
	"strings"
	"testing"
)

// Manifests name the program of envoyproxy/ratelimit as the program, as its first argument, or not at all.
func TestProgramOfEnvoyRatelimitIsTheCommand(t *testing.T) {
	for _, c := range []struct{ given, want string }{
		{"/bin/ratelimit", "ratelimit"},
		{"/bin/ratelimit --http :1", "ratelimit --http :1"},
		{"/bin/ratelimit serve", "serve"},
		{"/penstock /bin/ratelimit", "ratelimit"},
		{"/penstock ratelimit --http :1", "ratelimit --http :1"},
		{"/penstock ./ratelimit --http :1", "ratelimit --http :1"},
		{"/bin/ratelimit /bin/ratelimit", "ratelimit"},
		{"/penstock", ""},
		{"/penstock serve", "serve"},
		{"/penstock /bin/ratelimiter", "/bin/ratelimiter"},
		{"/penstock --log-level ratelimit", "--log-level ratelimit"},
		{"/penstock take ratelimit", "take ratelimit"},
	} {
		words := strings.Fields(c.given)
		if got := withCommand(words[0], words[1:]); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s: runs %q, want %q", c.given, got, c.want)
		}
	}
}

// Serve, which the image starts without arguments, must not limit nothing where the manifest was one of
// envoyproxy/ratelimit, nor take the variable of another program for such a manifest.
func TestServeTakesThePlaceOfEnvoyRatelimit(t *testing.T) {
	for _, c := range []struct {
		flags, environ string
		acts           bool
	}{
		{environ: "RUNTIME_ROOT=/data", acts: true},
		{environ: "REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379", acts: true},
		{environ: "REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit USE_STATSD=false", acts: true},
		{environ: "REDIS_URL=redis:6379 REDIS_SOCKET_TYPE=tcp CONFIG_TYPE=GRPC_XDS_SOTW", acts: true},
		{environ: "REDIS_TYPE=CLUSTER REDIS_URL=a:1,b:2 RUNTIME_SUBDIRECTORY=ratelimit", acts: true},
		{environ: "CONFIG_TYPE=GRPC_XDS_SOTW", acts: true},
		{environ: "RUNTIME_ROOT=/data PENSTOCK_NODES=3 PENSTOCK_LOG_LEVEL=info", acts: true},
		{flags: "http=:1", environ: "RUNTIME_ROOT=/data", acts: true},
		{environ: "REDIS_TYPE=CLUSTER REDIS_URL=a:1,b:2 RUNTIME_WATCH_ROOT=false RUNTIME_IGNOREDOTFILES=true REDIS_PERSECOND=true LIMIT_RESPONSE_HEADERS_ENABLED=true", acts: true},
		{environ: "RUNTIME_WATCH_ROOT=false", acts: true},
		{environ: "RUNTIME_IGNOREDOTFILES=true", acts: true},
		{environ: "RUNTIME_APPDIRECTORY=config", acts: true},
		{environ: "MERGE_DOMAIN_CONFIG=true", acts: true},
		{environ: "REDIS_PERSECOND=false", acts: true},
		{environ: "REDIS_PERSECOND_URL=redis:6379", acts: true},
		{environ: "LIMIT_RESPONSE_HEADERS_ENABLED=true", acts: true},
		{environ: "LIMIT_REMAINING_HEADER=X-Remaining", acts: true},
		{environ: "LIMIT_REQUEST_HEADERS_ENABLED=true", acts: true},
		{environ: "CONFIG_GRPC_XDS_NODE_ID=ratelimit", acts: true},
		{environ: "RUNTIME_WATCH_ROOT=false PENSTOCK_RULES=/rules"},
		{environ: "PATH=/bin"},
		{environ: "REDIS_URL=redis://redis:6379"},
		{environ: "REDIS_URL=redis://redis:6379 REDIS_SOCKET_TYPE="},
		{environ: "REDIS_URL=redis://redis:6379 USE_STATSD=true BACKEND_TYPE=s3 CONFIG_TYPE=production PORT=5000 HOST=web"},
		{environ: "REDIS_TYPE=CLUSTER REDIS_URL=a:1,b:2 REDIS_TLS=true REDIS_AUTH=secret REDIS_POOL_SIZE=5 REDIS_TIMEOUT=1s REDIS_PIPELINE_LIMIT=8"},
		{environ: "STATSD_HOST=agent STATSD_PORT=8125 USE_DOG_STATSD=true USE_PROMETHEUS=true EXTRA_TAGS=a:b DISABLE_STATS=true PROMETHEUS_ADDR=:9090"},
		{environ: "GRPC_PORT=1 GRPC_MAX_CONNECTION_AGE=1h DEBUG_PORT=2 LOG_LEVEL=debug LOG_FORMAT=json SHADOW_MODE=true QUOTA_MODE=true CACHE_KEY_PREFIX=a"},
		{environ: "TRACING_ENABLED=true TRACING_SAMPLING_RATE=1 MEMCACHE_HOST_PORT=a:1 NEAR_LIMIT_RATIO=0.8 LOCAL_CACHE_SIZE_IN_BYTES=9 GOGC=50 KUBERNETES_SERVICE_HOST=10.0.0.1"},
		{environ: "BACKEND_TYPE=memcache CONFIG_TYPE=FILE"},
		{environ: "RUNTIME_ROOT= CONFIG_TYPE="},
		{flags: "rules=/rules", environ: "RUNTIME_ROOT=/data REDIS_URL=redis:6379"},
		{environ: "RUNTIME_ROOT=/data REDIS_URL=redis:6379 PENSTOCK_RULES=/rules"},
		{environ: "RUNTIME_ROOT=/data PENSTOCK_RULES_XDS=grpc://xds:1"},
		{flags: "store=redis://redis:6379", environ: "RUNTIME_ROOT=/data REDIS_URL=redis:6379"},
		{flags: "store=memory:", environ: "RUNTIME_ROOT=/data REDIS_URL=redis:6379"},
		{environ: "RUNTIME_ROOT=/data REDIS_URL=redis:6379 PENSTOCK_STORE=memory:"},
	} {
		flags := map[string]string{}
		if name, text, ok := strings.Cut(c.flags, "="); ok {
			flags[name] = text
		}
		config, err := loadServe(flags, strings.Fields(c.environ))
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if acts := config.Ratelimit != nil; acts != c.acts {
			t.Errorf("%+v: acts as penstock ratelimit: %v", c, acts)
		} else if acts && !strings.HasPrefix(config.Ratelimit.Notes[len(config.Ratelimit.Notes)-1], "serving in place of envoyproxy/ratelimit") {
			t.Errorf("%+v: notes %q do not say so", c, config.Ratelimit.Notes)
		}
	}
}

// Commands look for the server where serve would have it: a REDIS_URL of another program moves no listener.
func TestCommandsFindTheServerThatServeStarts(t *testing.T) {
	t.Setenv("DEBUG_PORT", "6071")
	t.Setenv("REDIS_URL", "redis://redis:6379")
	for socketType, want := range map[string]string{"": "127.0.0.1:6070", "tcp": "0.0.0.0:6071"} {
		t.Setenv("REDIS_SOCKET_TYPE", socketType)
		c, err := (&connectFlags{}).settings()
		if err != nil || c.Admin.Addr != want {
			t.Errorf("REDIS_SOCKET_TYPE=%q: admin listener %q %v, want %s", socketType, c.Admin.Addr, err, want)
		}
	}
}
