package ratelimit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A variable is one of envoyproxy/ratelimit. One that has neither a setting nor a function set, nor a
// reason, is read by environment.combine together with others.
type variable struct {
	name    string
	check   func(value string) error // nil: every text is valid
	setting string                   // the setting that has the value
	set     func(e *environment, value string) error

	// Why the variable has no effect, unless its value is same, which is what happens here anyway.
	reason, same string

	onlyXDS bool // without effect while rules come from files
}

// Reasons for which variables have no effect.
const (
	reasonShared    = "calls share connections and round trips by themselves"
	reasonPerSecond = "all limits are counted in one Redis, which gives the same answers"
	reasonFallback  = "without Redis the server decides locally, stays healthy, and connects later"
	reasonXDS       = "it is about rules over xDS, and CONFIG_TYPE is FILE"
	reasonMemcached = "it is about memcached, and BACKEND_TYPE is redis"
	reasonTracing   = "requests are traced if their traceparent is sampled and OTEL_EXPORTER_OTLP_ENDPOINT is set; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES name the service"
)

// variables are all that envoyproxy/ratelimit has.
var variables = slices.Concat(
	// Listeners and TLS
	all(variable{}, "HOST", "PORT", "DEBUG_HOST", "DEBUG_PORT", "GRPC_HOST", "GRPC_PORT", "GRPC_UDS",
		"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN"),
	all(variable{check: isFlag}, "GRPC_SERVER_USE_TLS"),
	all(variable{set: duration("30m", 0, func(r *Role) *time.Duration { return &r.ConnectionAge })}, "GRPC_MAX_CONNECTION_AGE"),
	all(variable{set: duration("30m", 0, func(r *Role) *time.Duration { return &r.ConnectionAgeGrace })}, "GRPC_MAX_CONNECTION_AGE_GRACE"),

	// Logs
	all(variable{set: logLevel}, "LOG_LEVEL"),
	all(variable{set: logFormat}, "LOG_FORMAT"),

	// Rules
	all(variable{check: isConfigType}, "CONFIG_TYPE"),
	all(variable{check: isFlag}, "FORCE_START_WITHOUT_INITIAL_CONFIG"), // always so with files
	all(variable{}, "RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"),
	all(variable{same: "true", reason: "files whose names begin with a dot are always ignored"}, "RUNTIME_IGNOREDOTFILES"),
	all(variable{same: "true", reason: "changes of files and of links are both noticed"}, "RUNTIME_WATCH_ROOT"),
	all(variable{setting: "merge-domains"}, "MERGE_DOMAIN_CONFIG"),

	// Statistics
	all(variable{check: isFlag}, "USE_STATSD", "USE_DOG_STATSD", "USE_PROMETHEUS", "DISABLE_STATS"),
	all(variable{}, "STATSD_HOST", "PROMETHEUS_ADDR", "PROMETHEUS_PATH"),
	all(variable{check: isPort}, "STATSD_PORT"),
	all(variable{reason: "names are not rewritten; the agent can do so"}, "USE_DOG_STATSD_MOGRIFIERS"),
	all(variable{set: duration("10s", 1, func(r *Role) *time.Duration { return &r.Stats.FlushInterval })}, "STATS_FLUSH_INTERVAL"),
	all(variable{set: extraTags}, "EXTRA_TAGS"),
	all(variable{reason: "metrics have the names of the default mapping"}, "PROMETHEUS_MAPPER_YAML"),
	all(variable{same: "false", reason: "response times are in seconds"}, "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"),
	all(variable{set: nearLimitRatio}, "NEAR_LIMIT_RATIO"),
	all(variable{set: flag(func(r *Role) *bool { return &r.Stats.SanitizeDots }), check: isFlag}, "SANITIZE_DESCRIPTOR_METRIC_DOTS"),

	// Counting and answers
	all(variable{check: isBackendType}, "BACKEND_TYPE"),
	all(variable{setting: "redis-prefix"}, "CACHE_KEY_PREFIX"),
	all(variable{reason: "keys live up to a tenth of their window longer by themselves"}, "EXPIRATION_JITTER_MAX_SECONDS"),
	all(variable{set: localCache}, "LOCAL_CACHE_SIZE_IN_BYTES"),
	all(variable{set: flag(func(r *Role) *bool { return &r.StopIncrement }), check: isFlag}, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"),
	all(variable{setting: "shadow"}, "SHADOW_MODE"),
	all(variable{set: flag(func(r *Role) *bool { return &r.QuotaMode }), check: isFlag}, "QUOTA_MODE"),
	all(variable{setting: "envoy-metadata"}, "RESPONSE_DYNAMIC_METADATA"),
	all(variable{setting: "envoy-headers"}, "LIMIT_RESPONSE_HEADERS_ENABLED"),
	all(variable{}, "LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"),
	all(variable{check: isFlag}, "LIMIT_REQUEST_HEADERS_ENABLED"),
	all(variable{name: "LIMIT_REQUEST_"}, "LIMIT_HEADER", "REMAINING_HEADER", "RESET_HEADER"),
	all(variable{set: flag(func(r *Role) *bool { return &r.CalendarMonth }), check: isFlag}, "USE_CALENDAR_MONTH_RATE_LIMIT"),
	all(variable{set: flag(func(r *Role) *bool { return &r.HealthyWithRules }), check: isFlag}, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),

	// Redis
	all(variable{}, "REDIS_SOCKET_TYPE", "REDIS_TYPE", "REDIS_URL", "REDIS_AUTH", "REDIS_SENTINEL_AUTH",
		"REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT"),
	all(variable{check: isFlag}, "REDIS_TLS", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"),
	all(variable{set: redisTimeout}, "REDIS_TIMEOUT"),
	all(variable{reason: reasonShared}, "REDIS_POOL_SIZE", "REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PIPELINE_WINDOW",
		"REDIS_PIPELINE_LIMIT", "REDIS_CLUSTER_PIPELINE_PARALLELISM"),
	all(variable{same: "false", reason: reasonFallback}, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
	all(variable{reason: reasonFallback}, "REDIS_STARTUP_INITIAL_INTERVAL", "REDIS_STARTUP_MAX_INTERVAL", "REDIS_STARTUP_MAX_ELAPSED_TIME"),
	all(variable{same: "true", reason: "a server that has become a replica is always left"}, "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR"),
	all(variable{same: "false", reason: reasonPerSecond}, "REDIS_PERSECOND"),
	all(variable{reason: reasonPerSecond, name: "REDIS_PERSECOND_"}, "SOCKET_TYPE", "TYPE", "URL", "AUTH", "TLS", "SENTINEL_AUTH", "TIMEOUT",
		"POOL_SIZE", "POOL_ON_EMPTY_BEHAVIOR", "PIPELINE_WINDOW", "PIPELINE_LIMIT", "CLUSTER_PIPELINE_PARALLELISM"),

	// Tracing
	all(variable{same: "false", reason: reasonTracing}, "TRACING_ENABLED"),
	all(variable{reason: reasonTracing, name: "TRACING_"}, "SERVICE_NAME", "SERVICE_NAMESPACE", "SERVICE_INSTANCE_ID", "EXPORTER_PROTOCOL", "SAMPLING_RATE"),

	// Rules over xDS
	all(variable{onlyXDS: true, name: "CONFIG_GRPC_XDS_"}, "NODE_ID", "NODE_METADATA", "SERVER_URL", "CLIENT_ADDITIONAL_HEADERS",
		"CLIENT_TLS_CERT", "CLIENT_TLS_KEY", "SERVER_TLS_CACERT", "SERVER_TLS_SAN"),
	all(variable{onlyXDS: true, check: isFlag}, "CONFIG_GRPC_XDS_SERVER_USE_TLS"),
	all(variable{onlyXDS: true, reason: "the client backs off by itself, from half a second to 30 s, with jitter"},
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "XDS_CLIENT_BACKOFF_JITTER"),
	all(variable{onlyXDS: true, reason: "responses may have 64 MiB"}, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"),

	// Memcached
	all(variable{reason: reasonMemcached, name: "MEMCACHE_"}, "HOST_PORT", "SRV", "SRV_REFRESH", "MAX_IDLE_CONNS", "TLS", "TLS_CLIENT_CERT",
		"TLS_CLIENT_KEY", "TLS_CACERT", "TLS_SKIP_HOSTNAME_VERIFICATION"),
)

// ownVariables are those that no other program has: whoever sets one of them means a service like envoyproxy/ratelimit.
// Others are left out where a platform or another program may set them, such as REDIS_TLS, STATSD_HOST and SHADOW_MODE.
var ownVariables = slices.Concat(
	prefixed("RUNTIME_", "ROOT", "SUBDIRECTORY", "APPDIRECTORY", "IGNOREDOTFILES", "WATCH_ROOT"),
	prefixed("", "MERGE_DOMAIN_CONFIG", "FORCE_START_WITHOUT_INITIAL_CONFIG", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
	prefixed("LIMIT_", "RESPONSE_HEADERS_ENABLED", "LIMIT_HEADER", "REMAINING_HEADER", "RESET_HEADER", "REQUEST_HEADERS_ENABLED",
		"REQUEST_LIMIT_HEADER", "REQUEST_REMAINING_HEADER", "REQUEST_RESET_HEADER"),
	prefixed("", "EXPIRATION_JITTER_MAX_SECONDS", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "RESPONSE_DYNAMIC_METADATA",
		"USE_CALENDAR_MONTH_RATE_LIMIT", "SANITIZE_DESCRIPTOR_METRIC_DOTS", "USE_DOG_STATSD_MOGRIFIERS"),
	prefixed("REDIS_", "SOCKET_TYPE", "POOL_ON_EMPTY_BEHAVIOR", "CLUSTER_PIPELINE_PARALLELISM", "HEALTH_CHECK_ACTIVE_CONNECTION",
		"CLOSE_CONNECTION_ON_READONLY_ERROR"),
	prefixed("REDIS_PERSECOND", "", "_SOCKET_TYPE", "_TYPE", "_URL", "_AUTH", "_TLS", "_SENTINEL_AUTH", "_TIMEOUT", "_POOL_SIZE",
		"_POOL_ON_EMPTY_BEHAVIOR", "_PIPELINE_WINDOW", "_PIPELINE_LIMIT", "_CLUSTER_PIPELINE_PARALLELISM"),
	prefixed("CONFIG_GRPC_XDS_", "NODE_ID", "NODE_METADATA", "SERVER_URL", "CLIENT_ADDITIONAL_HEADERS", "CLIENT_TLS_CERT", "CLIENT_TLS_KEY",
		"SERVER_TLS_CACERT", "SERVER_TLS_SAN", "SERVER_USE_TLS", "SERVER_CONNECT_RETRY_INTERVAL"),
)

// prefixed returns words after a prefix.
func prefixed(prefix string, words ...string) (all []string) {
	for _, word := range words {
		all = append(all, prefix+word)
	}
	return all
}

// all returns variables that are alike but for their names, which follow the name of v.
func all(v variable, names ...string) (vs []variable) {
	prefix := v.name
	for _, name := range names {
		v.name = prefix + name
		vs = append(vs, v)
	}
	return vs
}

// Variables returns the names of all variables of envoyproxy/ratelimit.
func Variables() (names []string) {
	for i := range variables {
		names = append(names, variables[i].name)
	}
	return names
}

// read puts the value of a variable where it belongs.
func (v *variable) read(e *environment, value string) error {
	if v.onlyXDS && !e.usesXDS() {
		e.note(v.name, reasonXDS)
		return nil
	}
	if v.check != nil {
		if err := v.check(value); err != nil {
			return err
		}
	}
	switch {
	case v.reason != "" && value != v.same:
		e.note(v.name, v.reason)
	case v.setting != "":
		e.set(v.setting, value, v.name)
	case v.set != nil:
		return v.set(e, value)
	}
	return nil
}

func (e *environment) note(name, reason string) {
	e.role.Notes = append(e.role.Notes, name+" has no effect: "+reason)
}

func isFlag(value string) error {
	if _, err := strconv.ParseBool(value); err != nil {
		return errors.New("want true or false")
	}
	return nil
}

func isPort(value string) error {
	if _, err := strconv.ParseUint(value, 10, 16); err != nil {
		return errors.New("want a port number")
	}
	return nil
}

func isConfigType(value string) error {
	if value != "FILE" && value != configTypeXDS {
		return errors.New("want FILE or " + configTypeXDS)
	}
	return nil
}

func isBackendType(value string) error {
	if value != "redis" {
		return errors.New("only redis is supported, because memcached cannot decide and count in one step: set BACKEND_TYPE=redis and REDIS_URL")
	}
	return nil
}

func flag(of func(*Role) *bool) func(*environment, string) error {
	return func(e *environment, value string) (err error) {
		*of(e.role), err = strconv.ParseBool(value)
		return err
	}
}

// duration sets a duration of at least so much; errors show what it looks like.
func duration(like string, least time.Duration, of func(*Role) *time.Duration) func(*environment, string) error {
	return func(e *environment, value string) (err error) {
		if *of(e.role), err = time.ParseDuration(value); err != nil || *of(e.role) < least {
			return errors.New("want a duration like " + like)
		}
		return nil
	}
}

// logLevel accepts the levels of that service, some of which have no equal.
func logLevel(e *environment, value string) error {
	level := strings.ToLower(value)
	if equal, ok := map[string]string{"trace": "debug", "warning": "warn", "fatal": "error", "panic": "error"}[level]; ok {
		level = equal
	}
	e.set("log-level", level, "LOG_LEVEL")
	return nil
}

// logFormat accepts what that service does: json in any case, and all else is text.
func logFormat(e *environment, value string) error {
	format := strings.ToLower(value)
	if format != "json" && format != "text" {
		e.note("LOG_FORMAT="+strconv.Quote(value), "want json or text")
		format = "text"
	}
	e.set("log-format", format, "LOG_FORMAT")
	return nil
}

// redisTimeout keeps the default for 0, which there is no bound: Envoy would not wait for the answer.
func redisTimeout(e *environment, value string) error {
	if d, err := time.ParseDuration(value); err == nil && d == 0 {
		e.note("REDIS_TIMEOUT="+value, "Redis has "+e.role.Settings["redis-timeout"].Text+" to answer a call")
		return nil
	}
	e.set("redis-timeout", value, "REDIS_TIMEOUT")
	return nil
}

// localCache turns on the cache of keys over their limit.
func localCache(e *environment, value string) error {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return errors.New("want a number of bytes")
	}
	if e.role.LocalCacheBytes = n; n > 0 {
		e.set("deny-cache", "true", "LOCAL_CACHE_SIZE_IN_BYTES")
	}
	return nil
}

// nearLimitRatio accepts more than the whole limit, which no hit within it is near.
func nearLimitRatio(e *environment, value string) error {
	ratio, err := strconv.ParseFloat(value, 32)
	if err != nil || !(ratio >= 0) {
		return errors.New("want a fraction like 0.8")
	}
	e.role.Stats.NearLimitRatio = min(ratio, 1)
	return nil
}

// maxTags bounds the tags of all statistics.
const maxTags = 32

// extraTags parses name:value,name:value. Of tags of one name the last counts, as there.
func extraTags(e *environment, value string) error {
	for pair := range strings.SplitSeq(value, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(pair), ":")
		if !ok || name == "" {
			return fmt.Errorf("%q: want name:value, with commas between them", pair)
		}
		e.role.Stats.Tags = slices.DeleteFunc(e.role.Stats.Tags, func(t Tag) bool { return t.Name == name })
		e.role.Stats.Tags = append(e.role.Stats.Tags, Tag{name, text})
	}
	if len(e.role.Stats.Tags) > maxTags {
		return fmt.Errorf("%d tags: want at most %d", len(e.role.Stats.Tags), maxTags)
	}
	return nil
}
