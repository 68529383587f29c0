package server

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reasons for which variables have no effect.
const (
	reasonShared    = "calls share connections and round trips by themselves"
	reasonPerSecond = "all limits are counted in one Redis, which gives the same answers"
	reasonFallback  = "without Redis the server decides locally, stays healthy, and connects later"
	reasonXDS       = "it is about rules over xDS, and CONFIG_TYPE is FILE"
	reasonMemcached = "it is about memcached, and BACKEND_TYPE is redis"
	reasonTracing   = "there are no traces; log lines and metrics tell about decisions"
)

// ratelimitVariables are all variables of envoyproxy/ratelimit.
var ratelimitVariables = slices.Concat([]ratelimitVariable{
	// Listeners and TLS
	{name: "HOST", set: combined},
	{name: "PORT", set: combined},
	{name: "DEBUG_HOST", set: combined},
	{name: "DEBUG_PORT", set: combined},
	{name: "GRPC_HOST", set: combined},
	{name: "GRPC_PORT", set: combined},
	{name: "GRPC_UDS", set: combined},
	{name: "GRPC_MAX_CONNECTION_AGE", set: roleDuration(func(r *RatelimitRole) *time.Duration { return &r.ConnectionAge })},
	{name: "GRPC_MAX_CONNECTION_AGE_GRACE", set: roleDuration(func(r *RatelimitRole) *time.Duration { return &r.ConnectionAgeGrace })},
	{name: "GRPC_SERVER_USE_TLS", set: combinedFlag},
	{name: "GRPC_SERVER_TLS_CERT", set: combined},
	{name: "GRPC_SERVER_TLS_KEY", set: combined},
	{name: "GRPC_CLIENT_TLS_CACERT", set: combined},
	{name: "GRPC_CLIENT_TLS_SAN", set: combined},

	// Logs
	{name: "LOG_LEVEL", set: ratelimitLogLevel},
	{name: "LOG_FORMAT", set: toSetting("log-format")},

	// Rules
	{name: "CONFIG_TYPE", set: configType},
	{name: "FORCE_START_WITHOUT_INITIAL_CONFIG", set: combinedFlag}, // always so with files
	{name: "RUNTIME_ROOT", set: combined},
	{name: "RUNTIME_SUBDIRECTORY", set: combined},
	{name: "RUNTIME_APPDIRECTORY", set: combined},
	{name: "RUNTIME_IGNOREDOTFILES", same: "true", reason: "files whose names begin with a dot are always ignored"},
	{name: "RUNTIME_WATCH_ROOT", same: "true", reason: "changes of files and of links are both noticed"},
	{name: "MERGE_DOMAIN_CONFIG", set: toSetting("merge-domains")},

	// Statistics
	{name: "USE_STATSD", set: combinedFlag},
	{name: "STATSD_HOST", set: combined},
	{name: "STATSD_PORT", set: portNumber},
	{name: "USE_DOG_STATSD", set: combinedFlag},
	{name: "USE_DOG_STATSD_MOGRIFIERS", reason: "names are not rewritten; the agent can do so"},
	{name: "STATS_FLUSH_INTERVAL", set: flushInterval},
	{name: "DISABLE_STATS", set: combinedFlag},
	{name: "EXTRA_TAGS", set: extraTags},
	{name: "USE_PROMETHEUS", set: combinedFlag},
	{name: "PROMETHEUS_ADDR", set: combined},
	{name: "PROMETHEUS_PATH", set: combined},
	{name: "PROMETHEUS_MAPPER_YAML", reason: "metrics have the names of the default mapping"},
	{name: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", same: "false", reason: "response times are in seconds"},
	{name: "NEAR_LIMIT_RATIO", set: nearLimitRatio},

	// Counting and answers
	{name: "BACKEND_TYPE", set: backendType},
	{name: "CACHE_KEY_PREFIX", set: toSetting("redis-prefix")},
	{name: "EXPIRATION_JITTER_MAX_SECONDS", reason: "keys live up to a tenth of their window longer by themselves"},
	{name: "LOCAL_CACHE_SIZE_IN_BYTES", set: localCache},
	{name: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", set: stopIncrement},
	{name: "SHADOW_MODE", set: toSetting("shadow")},
	{name: "QUOTA_MODE", set: roleFlag(func(r *RatelimitRole) *bool { return &r.QuotaMode })},
	{name: "RESPONSE_DYNAMIC_METADATA", set: toSetting("envoy-metadata")},
	{name: "LIMIT_RESPONSE_HEADERS_ENABLED", set: toSetting("envoy-headers")},
	{name: "LIMIT_LIMIT_HEADER", set: combined},
	{name: "LIMIT_REMAINING_HEADER", set: combined},
	{name: "LIMIT_RESET_HEADER", set: combined},
	{name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", set: roleFlag(func(r *RatelimitRole) *bool { return &r.HealthyWithRules })},

	// Redis
	{name: "REDIS_SOCKET_TYPE", set: combined},
	{name: "REDIS_TYPE", set: combined},
	{name: "REDIS_URL", set: combined},
	{name: "REDIS_AUTH", set: combined},
	{name: "REDIS_SENTINEL_AUTH", set: combined},
	{name: "REDIS_TLS", set: combinedFlag},
	{name: "REDIS_TLS_CLIENT_CERT", set: combined},
	{name: "REDIS_TLS_CLIENT_KEY", set: combined},
	{name: "REDIS_TLS_CACERT", set: combined},
	{name: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", set: combinedFlag},
	{name: "REDIS_TIMEOUT", set: toSetting("redis-timeout")},
	{name: "REDIS_POOL_SIZE", reason: reasonShared},
	{name: "REDIS_POOL_ON_EMPTY_BEHAVIOR", reason: reasonShared},
	{name: "REDIS_PIPELINE_WINDOW", reason: reasonShared},
	{name: "REDIS_PIPELINE_LIMIT", reason: reasonShared},
	{name: "REDIS_CLUSTER_PIPELINE_PARALLELISM", reason: reasonShared},
	{name: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", same: "false", reason: reasonFallback},
	{name: "REDIS_STARTUP_INITIAL_INTERVAL", reason: reasonFallback},
	{name: "REDIS_STARTUP_MAX_INTERVAL", reason: reasonFallback},
	{name: "REDIS_STARTUP_MAX_ELAPSED_TIME", reason: reasonFallback},
	{name: "REDIS_PERSECOND", same: "false", reason: reasonPerSecond},

	// Tracing
	{name: "TRACING_ENABLED", same: "false", reason: reasonTracing},
},
	ignoredVariables("REDIS_PERSECOND_", reasonPerSecond, "SOCKET_TYPE", "TYPE", "URL", "AUTH", "TLS", "SENTINEL_AUTH", "TIMEOUT",
		"POOL_SIZE", "POOL_ON_EMPTY_BEHAVIOR", "PIPELINE_WINDOW", "PIPELINE_LIMIT", "CLUSTER_PIPELINE_PARALLELISM"),
	ignoredVariables("TRACING_", reasonTracing, "SERVICE_NAME", "SERVICE_NAMESPACE", "SERVICE_INSTANCE_ID", "EXPORTER_PROTOCOL", "SAMPLING_RATE"),
	xdsVariables(),
	ignoredVariables("MEMCACHE_", reasonMemcached, "HOST_PORT", "SRV", "SRV_REFRESH", "MAX_IDLE_CONNS", "TLS", "TLS_CLIENT_CERT",
		"TLS_CLIENT_KEY", "TLS_CACERT", "TLS_SKIP_HOSTNAME_VERIFICATION"),
)

func ignoredVariables(prefix, reason string, names ...string) (all []ratelimitVariable) {
	for _, name := range names {
		all = append(all, ratelimitVariable{name: prefix + name, reason: reason})
	}
	return all
}

// combined is for variables that ratelimitEnv.combine reads.
func combined(*ratelimitEnv, string, string) error { return nil }

// combinedFlag is combined for booleans.
func combinedFlag(_ *ratelimitEnv, _, value string) error {
	_, err := parseFlag(value)
	return err
}

func parseFlag(value string) (bool, error) {
	on, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return on, nil
}

func toSetting(setting string) func(*ratelimitEnv, string, string) error {
	return func(e *ratelimitEnv, name, value string) error {
		e.set(setting, value, name)
		return nil
	}
}

func roleFlag(of func(*RatelimitRole) *bool) func(*ratelimitEnv, string, string) error {
	return func(e *ratelimitEnv, _, value string) (err error) {
		*of(e.role), err = parseFlag(value)
		return err
	}
}

func roleDuration(of func(*RatelimitRole) *time.Duration) func(*ratelimitEnv, string, string) error {
	return func(e *ratelimitEnv, _, value string) (err error) {
		if *of(e.role), err = time.ParseDuration(value); err != nil || *of(e.role) < 0 {
			return errors.New("want a duration like 30m")
		}
		return nil
	}
}

// ratelimitLogLevel accepts the levels of that service, some of which have no equal.
func ratelimitLogLevel(e *ratelimitEnv, name, value string) error {
	level := strings.ToLower(value)
	switch level {
	case "trace":
		level = "debug"
	case "warning":
		level = "warn"
	case "fatal", "panic":
		level = "error"
	}
	e.set("log-level", level, name)
	return nil
}

func configType(_ *ratelimitEnv, _, value string) error {
	if value != "FILE" && value != configTypeXDS {
		return errors.New("want FILE or " + configTypeXDS)
	}
	return nil
}

func backendType(_ *ratelimitEnv, _, value string) error {
	if value == "redis" {
		return nil
	}
	return errors.New("only redis is supported, because memcached cannot decide and count in one step: set BACKEND_TYPE=redis and REDIS_URL")
}

// localCache turns on the cache of keys over their limit.
func localCache(e *ratelimitEnv, name, value string) error {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return errors.New("want a number of bytes")
	}
	if e.role.LocalCacheBytes = n; n > 0 {
		e.set("deny-cache", "true", name)
	}
	return nil
}

// stopIncrement selects all or nothing, which is what the variable is for: that a denied request
// is not counted.
func stopIncrement(e *ratelimitEnv, name, value string) error {
	on, err := parseFlag(value)
	if err == nil && on {
		e.set("compat", "", name)
	}
	return err
}

func nearLimitRatio(e *ratelimitEnv, _, value string) error {
	ratio, err := strconv.ParseFloat(value, 32)
	if err != nil || !(ratio >= 0 && ratio <= 1) {
		return errors.New("want a fraction like 0.8")
	}
	e.role.Stats.NearLimitRatio = ratio
	return nil
}

// portNumber checks a port that ratelimitEnv.combine reads.
func portNumber(_ *ratelimitEnv, _, value string) error {
	if _, err := strconv.ParseUint(value, 10, 16); err != nil {
		return errors.New("want a port number")
	}
	return nil
}

// flushInterval sets how often statistics are sent.
func flushInterval(e *ratelimitEnv, _, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return errors.New("want a duration like 10s")
	}
	e.role.Stats.FlushInterval = d
	return nil
}

// tagName matches what may be the name of a label.
var tagName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// maxTags bounds the tags of all statistics.
const maxTags = 32

// extraTags parses name:value,name:value.
func extraTags(e *ratelimitEnv, _, value string) error {
	for pair := range strings.SplitSeq(value, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(pair), ":")
		if !ok || !tagName.MatchString(name) {
			return fmt.Errorf("%q: want name:value, with commas between them", pair)
		}
		e.role.Stats.Tags = append(e.role.Stats.Tags, Tag{name, text})
	}
	if len(e.role.Stats.Tags) > maxTags {
		return fmt.Errorf("%d tags: want at most %d", len(e.role.Stats.Tags), maxTags)
	}
	return nil
}
