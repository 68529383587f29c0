package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/spelling"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rulesource"
	"github.com/penstock-io/penstock/server/envoy/xds"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/penstock-io/penstock/sqlstore"
)

// A Setting is one option of the daemon. It can be set by a flag, by an environment
// variable or in the config file.
type Setting struct {
	Name    string // of the flag, and in the config file
	Kind    string // of value, as the help shows it; "" for a boolean
	Default string
	Help    string
	Group   string // heading in the help and the documentation

	// Values are all that the setting accepts; nil if there are too many to list.
	Values []string

	set func(c *Config, text string) error
}

// Env returns the name of the setting's environment variable.
func (s *Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

var (
	failureNames = []string{"local", "allow", "deny"}
	logFormats   = []string{"text", "json"}

	compatNames       = []string{"envoy"}
	unmatchedNames    = []string{"allow", "deny"}
	requestLimitNames = []string{"on", "local", "off"}
)

// headerForms returns the names of all header forms.
func headerForms() (names []string) {
	for f := httplimit.IETF; f <= httplimit.NoHeaders; f++ {
		names = append(names, f.String())
	}
	return names
}

// Settings lists all settings. Flags, environment variables, the config file and the
// documentation follow this table.
var Settings = slices.Concat(
	group("Rules",
		Setting{Name: "rules", Kind: "path", Help: "rule file, directory of rule files, or URL of a server that has them: https://, consul://, etcd://, nacos:// or apollo://; reloaded on change", set: to(parseRules, func(c *Config) *string { return &c.Rules })},
		Setting{Name: "rules-credentials", Kind: "text", Help: "credentials for the server of --rules: user:password, or a token; visible in ps", set: to(asIs, func(c *Config) *string { return &c.RulesCredentials })},
		Setting{Name: "rules-credentials-file", Kind: "file", Help: "file that contains these credentials; read again before each request", set: to(asIs, func(c *Config) *string { return &c.RulesCredentialsFile })},
		Setting{Name: "rules-xds", Kind: "url", Help: "xDS server to receive rules from, in place of --rules: grpc://host:port?node=ID, or grpcs:// with TLS; more parameters are ca, cert, key (PEM files), server_name, metadata, header, and wait=false to start before the first rules arrive", set: optional(to(xds.ParseURL, func(c *Config) **xds.Config { return &c.RulesXDS }))},
		Setting{Name: "candidate-rules", Kind: "path", Help: "rules to try beside those of --rules: they are counted and compared, and never deny; as --rules; default none", set: to(parseRules, func(c *Config) *string { return &c.CandidateRules })},
		Setting{Name: "merge-domains", Default: "false", Help: "allow several rule files, or xDS resources, to define one domain", set: to(parseFlag, func(c *Config) *bool { return &c.MergeDomains })},
		Setting{Name: "shadow", Default: "false", Help: "shadow mode: allow everything, count would-be denials", set: to(parseFlag, func(c *Config) *bool { return &c.Shadow })},
		Setting{Name: "compat", Kind: "mode", Help: "decide the requests of all domains as this service does: envoy, as compat: envoy in rule files; default none", Values: compatNames, set: optional(to(oneOf(compatNames), func(c *Config) *string { return &c.Compat }))},
		Setting{Name: "unmatched", Kind: "mode", Default: "allow", Help: "decisions on requests that no rule matches in any descriptor: allow or deny", Values: unmatchedNames, set: to(oneOf(unmatchedNames), func(c *Config) *string { return &c.Unmatched })},
	),
	group("Store",
		Setting{Name: "store", Kind: "url", Default: memoryURL, Help: "memory: (this process only), redis://, rediss://, unix://, redis-sentinel://, redis-cluster://, postgres://, mysql:// or sqlite:FILE", set: to(parseStore, func(c *Config) *string { return &c.Store })},
		Setting{Name: "max-keys", Kind: "number", Default: "1000000", Help: "maximum number of keys in memory; beyond it, new keys share one overflow bucket per limit", set: to(parseCount, func(c *Config) *int { return &c.MaxKeys })},
		Setting{Name: "max-bytes", Kind: "size", Default: "1GiB", Help: "maximum memory for the state of sliding logs, rolling windows and concurrent limits", set: to(parseSize, func(c *Config) *int64 { return &c.MaxBytes })},
		Setting{Name: "redis-prefix", Kind: "text", Default: "p", Help: "prefix of all keys in Redis", set: to(parsePrefix, func(c *Config) *string { return &c.RedisPrefix })},
		Setting{Name: "redis-timeout", Kind: "duration", Default: "50ms", Help: "how long Redis has to answer a call, retries included", set: to(parsePositive, func(c *Config) *time.Duration { return &c.RedisTimeout })},
		Setting{Name: "sql-table", Kind: "text", Default: sqlstore.DefaultTable, Help: "table in the SQL database, created if it does not exist", set: to(asIs, func(c *Config) *string { return &c.SQLTable })},
		Setting{Name: "sql-timeout", Kind: "duration", Default: "250ms", Help: "timeout of a call to the SQL database, repeated transactions included", set: to(parsePositive, func(c *Config) *time.Duration { return &c.SQLTimeout })},
	),
	group("Limits in requests",
		Setting{Name: "request-limits", Kind: "mode", Default: "on", Help: "which callers may bring a limit in a request: on (all), local (those that may refund: with the token, or without one from this machine) or off (none)", Values: requestLimitNames, set: to(oneOf(requestLimitNames), func(c *Config) *string { return &c.RequestLimits })},
		Setting{Name: "request-limits-max-period", Kind: "duration", Default: "744h", Help: "longest period of a limit in a request, and longest time to refill a bucket; callers that may refund are exempt", set: to(parsePositive, func(c *Config) *time.Duration { return &c.RequestLimitsMaxPeriod })},
		Setting{Name: "request-limits-max-key-bytes", Kind: "size", Default: "4KiB", Help: "maximum state of one key under a limit in a request; callers that may refund are exempt", set: to(parseSize, func(c *Config) *int64 { return &c.RequestLimitsMaxKeyBytes })},
		Setting{Name: "request-limits-max-redis-bytes", Kind: "size", Default: "64MiB", Help: "maximum live state that limits in requests to this server leave in Redis; callers that may refund are exempt", set: to(parseSize, func(c *Config) *int64 { return &c.RequestLimitsMaxRedisBytes })},
		Setting{Name: "request-limits-share", Kind: "fraction", Default: "0.5", Help: "share of --max-keys and --max-bytes that limits in requests can fill, if there are rules; without rules all", set: to(parseFraction, func(c *Config) *float64 { return &c.RequestLimitsShare })},
	),
	group("Persistence",
		Setting{Name: "data", Kind: "directory", Help: "directory for what the daemon keeps: the counters of the memory store, overrides, the rules of a server, the history of rates; without one, they are lost on exit, except what Redis has", set: to(asIs, func(c *Config) *string { return &c.Data })},
		Setting{Name: "snapshot-interval", Kind: "duration", Default: "1m", Help: "time between snapshots of the memory store, in addition to one on exit; a crash loses at most this much", set: to(parsePositive, func(c *Config) *time.Duration { return &c.SnapshotInterval })},
		Setting{Name: "record", Kind: "directory", Help: "directory to record requests in, with their domain, entries, costs and outcome, for penstock replay; default none", set: to(asIs, func(c *Config) *string { return &c.Record })},
		Setting{Name: "record-max-bytes", Kind: "size", Default: "1GiB", Help: "maximum size of all recordings; the oldest are removed", set: to(parseSize, func(c *Config) *int64 { return &c.RecordMaxBytes })},
		Setting{Name: "record-sample", Kind: "fraction", Default: "1", Help: "share of keys to record; a key is recorded always or never", set: to(parseFraction, func(c *Config) *float64 { return &c.RecordSample })},
		Setting{Name: "record-hash", Kind: "names", Help: "keys of entries whose values are hashed in recordings, such as user,remote_address; * hashes all", set: to(parseNames, func(c *Config) *[]string { return &c.RecordHash })},
	),
	group("Redis outages and load",
		Setting{Name: "nodes", Kind: "number", Default: "1", Help: "least number of servers that share the store; while it is unavailable, each grants its part of a limit", set: to(parseCount, func(c *Config) *int { return &c.Nodes })},
		Setting{Name: "on-store-failure", Kind: "mode", Default: "local", Help: "decisions while Redis or the database is unavailable: local, allow or deny; default of on_store_failure in rules", Values: failureNames, set: to(oneOf(failureNames), func(c *Config) *string { return &c.OnStoreFailure })},
		Setting{Name: "deny-cache", Default: "true", Help: "cache denials; default of deny_cache in rules", set: to(parseFlag, func(c *Config) *bool { return &c.DenyCache })},
		Setting{Name: "deny-cache-age", Kind: "duration", Default: "1s", Help: "maximum time for which a denial is cached; a refund or reset on another server is noticed after this long", set: to(parsePositive, func(c *Config) *time.Duration { return &c.DenyCacheAge })},
		Setting{Name: "lease", Default: "false", Help: "lease units of busy token buckets and windows and spend them locally, which may exceed a bucket by a tenth of its burst; default of lease in rules", set: to(parseFlag, func(c *Config) *bool { return &c.Lease })},
	),
	group("Regions",
		Setting{Name: "home", Kind: "url", Help: "store of the home region, which owns the limits of rules with global: its Redis as in --store, or https:// of a daemon there; default none", set: optional(to(parseHome, func(c *Config) *string { return &c.Home }))},
		Setting{Name: "home-token-file", Kind: "file", Help: "file that contains the token of that daemon", set: to(asIs, func(c *Config) *string { return &c.HomeTokenFile })},
		Setting{Name: "home-timeout", Kind: "duration", Default: "1s", Help: "timeout of a call to the home region", set: to(parsePositive, func(c *Config) *time.Duration { return &c.HomeTimeout })},
		Setting{Name: "regions", Kind: "number", Help: "how many regions share the home region, itself and this one included; the same in all of them", set: optional(to(parseCount, func(c *Config) *int { return &c.Regions }))},
		Setting{Name: "round-trip", Kind: "duration", Default: "250ms", Help: "longest round trip from any region to the home region; the same in all of them", set: to(parsePositive, func(c *Config) *time.Duration { return &c.RoundTrip })},
	),
	listenerSettings("grpc", ":8081", "address of the gRPC API, Envoy's rate limit service", func(c *Config) *ListenConfig { return &c.GRPC }),
	listenerSettings("http", ":8080", "address of the HTTP API, JSON and auth requests of proxies", func(c *Config) *ListenConfig { return &c.HTTP }),
	listenerSettings("resp", ":6380", "address of the RESP API, PENSTOCK.TAKE and CL.THROTTLE for Redis clients", func(c *Config) *ListenConfig { return &c.RESP }),
	listenerSettings("admin", "127.0.0.1:6070", "address of the admin API: health, metrics and keys", func(c *Config) *ListenConfig { return &c.Admin }),
	group("APIs",
		Setting{Name: "headers", Kind: "form", Default: "ietf", Help: "rate limit headers of the HTTP API: ietf, ietf-06, x-ratelimit, github, kong, envoy-03, openai or none", Values: headerForms(), set: to(httplimit.ParseForm, func(c *Config) *httplimit.Form { return &c.Headers })},
		Setting{Name: "trusted-proxies", Kind: "networks", Help: "proxies to skip at the end of X-Forwarded-For in address:X-Forwarded-For of /v1/auth, such as 10.0.0.0/8,2001:db8::7; private is all private networks; default none, the last address is the client", set: to(parseProxies, func(c *Config) *[]netip.Prefix { return &c.TrustedProxies })},
		Setting{Name: "resp-auth", Default: "false", Help: "require Redis clients to AUTH with the token before any other command", set: to(parseFlag, func(c *Config) *bool { return &c.RESPAuth })},
		Setting{Name: "envoy-headers", Default: "false", Help: "send RateLimit-Limit, -Remaining and -Reset for Envoy to add to responses", set: to(parseFlag, func(c *Config) *bool { return &c.EnvoyHeaders })},
		Setting{Name: "envoy-header-names", Kind: "names", Default: "RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset", Help: "names of these three headers", set: to(parseHeaderNames, func(c *Config) *[3]string { return &c.EnvoyHeaderNames })},
		Setting{Name: "envoy-metadata", Default: "false", Help: "send the descriptors and the rules' metadata to Envoy as dynamic metadata", set: to(parseFlag, func(c *Config) *bool { return &c.EnvoyMetadata })},
		Setting{Name: "rlqs", Default: "false", Help: "serve Envoy's rate limit quota service on the gRPC listener: proxies decide by themselves, with units of the rules' limits that they were assigned", set: to(parseFlag, func(c *Config) *bool { return &c.RLQS })},
		Setting{Name: "max-descriptors", Kind: "number", Default: "256", Help: "maximum number of descriptors in a request of Envoy", set: to(parseCount, func(c *Config) *int { return &c.MaxDescriptors })},
		Setting{Name: "max-entries", Kind: "number", Default: "128", Help: "maximum number of entries in a descriptor of Envoy", set: to(parseCount, func(c *Config) *int { return &c.MaxEntries })},
		Setting{Name: "max-connections", Kind: "number", Default: "10000", Help: "maximum number of connections per listener; more are closed at once", set: to(parseCount, func(c *Config) *int { return &c.MaxConnections })},
		Setting{Name: "max-connections-per-address", Kind: "number", Help: "maximum number of connections per listener from one remote IPv4 address or IPv6 /64; default half of --max-connections, since a proxy is one address too", set: optional(to(parseCount, func(c *Config) *int { return &c.MaxConnectionsPerAddress }))},
		Setting{Name: "top-keys", Kind: "number", Default: "4096", Help: "how many keys to count for the lists of top keys at /v1/top, each under its rule, asked and denied; 0 counts none", set: to(parseTopKeys, func(c *Config) *int { return &c.TopKeys })},
		Setting{Name: "pprof", Default: "false", Help: "serve /debug/pprof/ on the admin listener", set: to(parseFlag, func(c *Config) *bool { return &c.Pprof })},
		Setting{Name: "token", Kind: "text", Help: "bearer token, which refunds, resets and admin requests then need; visible in ps", set: to(asIs, func(c *Config) *string { return &c.Token })},
		Setting{Name: "token-file", Kind: "file", Help: "file that contains the token, or a line name:token for each operator; the audit log has the names", set: to(asIs, func(c *Config) *string { return &c.TokenFile })},
		Setting{Name: "trust-local", Default: "true", Help: "without a token, let programs on this machine refund, reset and use the admin API; set false if a proxy on this machine forwards to these listeners", set: to(parseFlag, func(c *Config) *bool { return &c.TrustLocal })},
		Setting{Name: "admin-actions", Default: "true", Help: "allow refunds, resets and other actions on the admin listener; false answers them with 403", set: to(parseFlag, func(c *Config) *bool { return &c.AdminActions })},
		Setting{Name: "audit-log", Kind: "file", Help: "file to which a line of JSON is appended before and after each action that undoes a limit; reopened on SIGHUP; default standard error", set: to(asIs, func(c *Config) *string { return &c.AuditLog })},
	),
	group("Process",
		Setting{Name: "config", Kind: "file", Help: "YAML file with settings by these names"},
		Setting{Name: "name", Kind: "text", Help: "name of this daemon among others on the same Redis, at /v1/live?scope=all; default the host name and the process ID", set: optional(to(parseName, func(c *Config) *string { return &c.Name }))},
		Setting{Name: "log-level", Kind: "level", Default: "info", Help: "minimum level of log lines: debug, info, warn or error", Values: []string{"debug", "info", "warn", "error"}, set: to(parseLevel, func(c *Config) *slog.Level { return &c.LogLevel })},
		Setting{Name: "log-format", Kind: "format", Default: "text", Help: "format of log lines: text or json", Values: logFormats, set: to(oneOf(logFormats), func(c *Config) *string { return &c.LogFormat })},
		Setting{Name: "log-denials", Kind: "limit", Help: "log denials, at most this many, such as 10/1s; default none", set: optional(to(parseDenials, func(c *Config) *penstock.Limit { return &c.LogDenials }))},
		Setting{Name: "trace-keys", Default: "false", Help: "add the keys of requests to traces, which are sent where the OTEL_EXPORTER_OTLP_ variables say", set: to(parseFlag, func(c *Config) *bool { return &c.TraceKeys })},
		Setting{Name: "shutdown-delay", Kind: "duration", Default: "0s", Help: "time between reporting not ready and closing the listeners, for load balancers to notice", set: to(parseDuration, func(c *Config) *time.Duration { return &c.ShutdownDelay })},
		Setting{Name: "shutdown-grace", Kind: "duration", Default: "10s", Help: "maximum wait for requests in flight on shutdown; 0s aborts them", set: to(parseDuration, func(c *Config) *time.Duration { return &c.ShutdownGrace })},
	),
)

// listenerSettings returns the settings that every listener has.
func listenerSettings(name, addr, what string, of func(*Config) *ListenConfig) []Setting {
	return group("Listener "+name,
		Setting{Name: name, Kind: "address", Default: addr, Help: what + `; empty disables it`, set: to(parseAddr, func(c *Config) *string { return &of(c).Addr })},
		Setting{Name: name + "-tls-cert", Kind: "file", Help: "TLS certificate chain, PEM; reloaded on change", set: to(asIs, func(c *Config) *string { return &of(c).Cert })},
		Setting{Name: name + "-tls-key", Kind: "file", Help: "TLS private key, PEM", set: to(asIs, func(c *Config) *string { return &of(c).Key })},
		Setting{Name: name + "-tls-client-ca", Kind: "file", Help: "CA certificates, PEM; require clients to present a certificate that one of them signed", set: to(asIs, func(c *Config) *string { return &of(c).ClientCA })},
	)
}

func group(name string, settings ...Setting) []Setting {
	for i := range settings {
		settings[i].Group = name
		if settings[i].Kind == "" {
			settings[i].Values = []string{"true", "false"}
		}
	}
	return settings
}

// findSetting returns the setting that has a name, of those that nameOf returns.
func findSetting(name string, nameOf func(*Setting) string) (*Setting, error) {
	var names []string
	for i := range Settings {
		if nameOf(&Settings[i]) == name {
			return &Settings[i], nil
		}
		names = append(names, nameOf(&Settings[i]))
	}
	return nil, fmt.Errorf("no such setting; the nearest is %s", spelling.Nearest(name, names))
}

// to sets a field to what is parsed from the text.
func to[T any](parse func(string) (T, error), field func(*Config) *T) func(*Config, string) error {
	return func(c *Config, text string) (err error) {
		*field(c), err = parse(text)
		return err
	}
}

// optional accepts the empty text, and leaves the field as it is.
func optional(set func(*Config, string) error) func(*Config, string) error {
	return func(c *Config, text string) error {
		if text == "" {
			return nil
		}
		return set(c, text)
	}
}

func asIs(text string) (string, error) { return text, nil }

func oneOf(words []string) func(string) (string, error) {
	return func(text string) (string, error) {
		if !slices.Contains(words, text) {
			return "", fmt.Errorf("%q: want %s", text, strings.Join(words, " or "))
		}
		return text, nil
	}
}

func parseFlag(text string) (bool, error) {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q: want true or false", text)
	}
	return on, nil
}

func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%q: want a whole number above zero", text)
	}
	return n, nil
}

func parseTopKeys(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > topkeys.MaxCounters {
		return 0, fmt.Errorf("%q: want a whole number from 0 to %d", text, topkeys.MaxCounters)
	}
	return n, nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q: want a duration like 500ms or 10s", text)
	}
	return d, nil
}

func parsePositive(text string) (time.Duration, error) {
	d, err := parseDuration(text)
	if err == nil && d == 0 {
		err = fmt.Errorf("%q: want more than zero", text)
	}
	return d, err
}

// parseFraction parses a part of a whole, from above 0 to 1.
func parseFraction(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0 && f <= 1) {
		return 0, fmt.Errorf("%q: want a fraction like 0.5, above 0 and at most 1", text)
	}
	return f, nil
}

// parseSize parses a number of bytes, with or without a binary unit.
func parseSize(text string) (int64, error) {
	number, unit := text, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = rest, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > 1<<62/unit {
		return 0, fmt.Errorf("%q: want a size like 512MiB or 1GiB", text)
	}
	return n * unit, nil
}

// prefixForm matches the prefixes that redisstore accepts. They are checked here too, so that the error
// names the setting.
var prefixForm = regexp.MustCompile(`^[a-zA-Z0-9:_/-]*$`)

func parsePrefix(text string) (string, error) {
	if !prefixForm.MatchString(text) {
		return "", fmt.Errorf("%q: want letters, digits and : _ - / only", text)
	}
	return text, nil
}

func parseName(text string) (string, error) {
	if len(text) > observe.MaxDaemonName || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", fmt.Errorf("%.80q: want at most %d printable bytes", text, observe.MaxDaemonName)
	}
	return text, nil
}

func parseLevel(text string) (level slog.Level, err error) {
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return level, fmt.Errorf("%q: want debug, info, warn or error", text)
	}
	return level, nil
}

func parseDenials(text string) (penstock.Limit, error) {
	l, err := penstock.ParseLimit(text)
	if err != nil {
		return l, fmt.Errorf("%q: want a limit like 10/1s: %w", text, err)
	}
	return l, nil
}

// parseProxies parses addresses and networks with commas between them.
func parseProxies(text string) (all []netip.Prefix, err error) {
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		networks, err := parseNetworks(word)
		if err != nil {
			return nil, err
		}
		all = append(all, networks...)
	}
	return all, nil
}

func parseNetworks(word string) ([]netip.Prefix, error) {
	if word == "private" {
		return httplimit.PrivateNetworks(), nil
	}
	if network, err := netip.ParsePrefix(word); err == nil {
		return []netip.Prefix{network}, nil
	}
	addr, err := netip.ParseAddr(word)
	if err != nil || addr.Zone() != "" {
		return nil, fmt.Errorf("%q: want an address, a network like 10.0.0.0/8, or private", word)
	}
	return []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}, nil
}

// headerName matches a token of RFC 9110.
var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]{1,64}$")

func parseHeaderNames(text string) (three [3]string, err error) {
	names := strings.Split(text, ",")
	if len(names) != len(three) || slices.ContainsFunc(names, func(n string) bool { return !headerName.MatchString(n) }) {
		return three, fmt.Errorf("%q: want three names with commas between them", text)
	}
	return [3]string(names), nil
}

// parseRules leaves a URL out of its errors: it may contain a password.
func parseRules(text string) (string, error) {
	if !rulesource.IsURL(text) {
		return text, nil
	}
	_, err := rulesource.Open(text, nil)
	return text, err
}

// parseStore leaves the URL out of its errors: it may contain a password.
func parseStore(text string) (string, error) {
	scheme, _, _ := strings.Cut(text, ":")
	if scheme == "memory" && text != memoryURL {
		return "", errors.New("want memory: without a path, or redis://host:port")
	}
	database, isSQL := sqlSchemes[scheme]
	if isSQL {
		_, err := database.source(text)
		return text, err
	}
	if !slices.Contains([]string{"memory", "redis", "rediss", "unix", "redis-sentinel", "redis-cluster"}, scheme) {
		return "", fmt.Errorf("scheme %q: want memory:, redis://, rediss://, unix://, redis-sentinel://, redis-cluster://, postgres://, mysql:// or sqlite:FILE", scheme)
	}
	return text, nil
}
