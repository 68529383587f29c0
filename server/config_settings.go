package server

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/envoy/xds"
	"github.com/penstock-io/penstock/server/observe"
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
		Setting{Name: "rules", Kind: "path", Help: "rule file, or directory of rule files; reloaded on change", set: text(func(c *Config) *string { return &c.Rules })},
		Setting{Name: "rules-xds", Kind: "url", Help: "xDS server to receive rules from, in place of --rules: grpc://host:port?node=ID, or grpcs:// with TLS; more parameters are ca, cert, key (PEM files), server_name, metadata, header, and wait=false to start before the first rules arrive", set: optional(rulesXDS)},
		Setting{Name: "merge-domains", Default: "false", Help: "allow several rule files, or xDS resources, to define one domain", set: toggle(func(c *Config) *bool { return &c.MergeDomains })},
		Setting{Name: "shadow", Default: "false", Help: "shadow mode: allow everything, count would-be denials", set: toggle(func(c *Config) *bool { return &c.Shadow })},
		Setting{Name: "compat", Kind: "mode", Help: "decide the requests of all domains as this service does: envoy, as compat: envoy in rule files; default none", Values: compatNames, set: optional(oneOf(func(c *Config) *string { return &c.Compat }, compatNames))},
		Setting{Name: "unmatched", Kind: "mode", Default: "allow", Help: "decisions on requests that no rule matches in any descriptor: allow or deny", Values: unmatchedNames, set: oneOf(func(c *Config) *string { return &c.Unmatched }, unmatchedNames)},
	),
	group("Store",
		Setting{Name: "store", Kind: "url", Default: memoryURL, Help: "memory: (this process only), redis://, rediss://, unix://, redis-sentinel:// or redis-cluster://", set: storeURL},
		Setting{Name: "max-keys", Kind: "number", Default: "1000000", Help: "maximum number of keys in memory; beyond it, new keys share one overflow bucket per limit", set: count(func(c *Config) *int { return &c.MaxKeys })},
		Setting{Name: "max-bytes", Kind: "size", Default: "1GiB", Help: "maximum memory for the state of sliding logs, rolling windows and concurrent limits", set: size(func(c *Config) *int64 { return &c.MaxBytes })},
		Setting{Name: "redis-prefix", Kind: "text", Default: "p", Help: "prefix of all keys in Redis", set: setRedisPrefix},
		Setting{Name: "redis-timeout", Kind: "duration", Default: "50ms", Help: "timeout of a Redis call, retries included", set: positive(func(c *Config) *time.Duration { return &c.RedisTimeout })},
	),
	group("Limits in requests",
		Setting{Name: "request-limits", Kind: "mode", Default: "on", Help: "which callers may bring a limit in a request: on (all), local (those that may refund: with the token, or without one from this machine) or off (none)", Values: requestLimitNames, set: oneOf(func(c *Config) *string { return &c.RequestLimits }, requestLimitNames)},
		Setting{Name: "request-limits-max-period", Kind: "duration", Default: "744h", Help: "longest period of a limit in a request, and longest time to refill a bucket; callers that may refund are exempt", set: positive(func(c *Config) *time.Duration { return &c.RequestLimitsMaxPeriod })},
		Setting{Name: "request-limits-max-key-bytes", Kind: "size", Default: "4KiB", Help: "maximum state of one key under a limit in a request; callers that may refund are exempt", set: size(func(c *Config) *int64 { return &c.RequestLimitsMaxKeyBytes })},
		Setting{Name: "request-limits-max-redis-bytes", Kind: "size", Default: "64MiB", Help: "maximum live state that limits in requests to this server leave in Redis; callers that may refund are exempt", set: size(func(c *Config) *int64 { return &c.RequestLimitsMaxRedisBytes })},
		Setting{Name: "request-limits-share", Kind: "fraction", Default: "0.5", Help: "share of --max-keys and --max-bytes that limits in requests can fill, if there are rules; without rules all", set: fraction(func(c *Config) *float64 { return &c.RequestLimitsShare })},
	),
	group("Persistence",
		Setting{Name: "data", Kind: "directory", Help: "directory for what the daemon keeps: the counters of the memory store, overrides, the rules of --rules-xds, the history of rates; without one, they are lost on exit, except what Redis has", set: text(func(c *Config) *string { return &c.Data })},
		Setting{Name: "snapshot-interval", Kind: "duration", Default: "1m", Help: "time between snapshots of the memory store, in addition to one on exit; a crash loses at most this much", set: positive(func(c *Config) *time.Duration { return &c.SnapshotInterval })},
	),
	group("Redis outages and load",
		Setting{Name: "nodes", Kind: "number", Default: "1", Help: "number of servers that share Redis; while it is unavailable, each grants 1/nodes of a limit", set: count(func(c *Config) *int { return &c.Nodes })},
		Setting{Name: "on-store-failure", Kind: "mode", Default: "local", Help: "decisions while Redis is unavailable: local, allow or deny; default of on_store_failure in rules", Values: failureNames, set: oneOf(func(c *Config) *string { return &c.OnStoreFailure }, failureNames)},
		Setting{Name: "deny-cache", Default: "true", Help: "cache denials; default of deny_cache in rules", set: toggle(func(c *Config) *bool { return &c.DenyCache })},
		Setting{Name: "deny-cache-age", Kind: "duration", Default: "1s", Help: "maximum time for which a denial is cached; a refund or reset on another server is noticed after this long", set: positive(func(c *Config) *time.Duration { return &c.DenyCacheAge })},
		Setting{Name: "lease", Default: "false", Help: "lease units of busy token buckets and spend them locally, which may exceed a limit by a tenth of its burst; default of lease in rules", set: toggle(func(c *Config) *bool { return &c.Lease })},
	),
	listenerSettings("grpc", ":8081", "address of the gRPC API, Envoy's rate limit service", func(c *Config) *ListenConfig { return &c.GRPC }),
	listenerSettings("http", ":8080", "address of the HTTP API, JSON and auth requests of proxies", func(c *Config) *ListenConfig { return &c.HTTP }),
	listenerSettings("resp", ":6380", "address of the RESP API, PENSTOCK.TAKE and CL.THROTTLE for Redis clients", func(c *Config) *ListenConfig { return &c.RESP }),
	listenerSettings("admin", "127.0.0.1:6070", "address of the admin API: health, metrics and keys", func(c *Config) *ListenConfig { return &c.Admin }),
	group("APIs",
		Setting{Name: "headers", Kind: "form", Default: "ietf", Help: "rate limit headers of the HTTP API: ietf, ietf-06, x-ratelimit, github, kong, envoy-03 or none", Values: headerForms(), set: headers},
		Setting{Name: "trusted-proxies", Kind: "networks", Help: "proxies to skip at the end of X-Forwarded-For in address:X-Forwarded-For of /v1/auth, such as 10.0.0.0/8,2001:db8::7; private is all private networks; default none, the last address is the client", set: trustedProxies},
		Setting{Name: "resp-auth", Default: "false", Help: "require Redis clients to AUTH with the token before any other command", set: toggle(func(c *Config) *bool { return &c.RESPAuth })},
		Setting{Name: "envoy-headers", Default: "false", Help: "send RateLimit-Limit, -Remaining and -Reset for Envoy to add to responses", set: toggle(func(c *Config) *bool { return &c.EnvoyHeaders })},
		Setting{Name: "envoy-header-names", Kind: "names", Default: "RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset", Help: "names of these three headers", set: headerNames},
		Setting{Name: "envoy-metadata", Default: "false", Help: "send the descriptors and the rules' metadata to Envoy as dynamic metadata", set: toggle(func(c *Config) *bool { return &c.EnvoyMetadata })},
		Setting{Name: "rlqs", Default: "false", Help: "serve Envoy's rate limit quota service on the gRPC listener: proxies decide by themselves, with units of the rules' limits that they were assigned", set: toggle(func(c *Config) *bool { return &c.RLQS })},
		Setting{Name: "max-descriptors", Kind: "number", Default: "256", Help: "maximum number of descriptors in a request of Envoy", set: count(func(c *Config) *int { return &c.MaxDescriptors })},
		Setting{Name: "max-entries", Kind: "number", Default: "128", Help: "maximum number of entries in a descriptor of Envoy", set: count(func(c *Config) *int { return &c.MaxEntries })},
		Setting{Name: "max-connections", Kind: "number", Default: "10000", Help: "maximum number of connections per listener; more are closed at once", set: count(func(c *Config) *int { return &c.MaxConnections })},
		Setting{Name: "max-connections-per-address", Kind: "number", Help: "maximum number of connections per listener from one remote IPv4 address or IPv6 /64; default half of --max-connections, since a proxy is one address too", set: optional(count(func(c *Config) *int { return &c.MaxConnectionsPerAddress }))},
		Setting{Name: "top-keys", Kind: "number", Default: "4096", Help: "how many keys to count for the lists of top keys at /v1/top, each under its rule, asked and denied; 0 counts none", set: topKeyCount},
		Setting{Name: "pprof", Default: "false", Help: "serve /debug/pprof/ on the admin listener", set: toggle(func(c *Config) *bool { return &c.Pprof })},
		Setting{Name: "token", Kind: "text", Help: "bearer token, which refunds, resets and admin requests then need; visible in ps", set: text(func(c *Config) *string { return &c.Token })},
		Setting{Name: "token-file", Kind: "file", Help: "file that contains the token, or a line name:token for each operator; the audit log has the names", set: text(func(c *Config) *string { return &c.TokenFile })},
		Setting{Name: "trust-local", Default: "true", Help: "without a token, let programs on this machine refund, reset and use the admin API; set false if a proxy on this machine forwards to these listeners", set: toggle(func(c *Config) *bool { return &c.TrustLocal })},
		Setting{Name: "admin-actions", Default: "true", Help: "allow refunds, resets and other actions on the admin listener; false answers them with 403", set: toggle(func(c *Config) *bool { return &c.AdminActions })},
		Setting{Name: "audit-log", Kind: "file", Help: "file to which a line of JSON is appended before and after each action that undoes a limit; reopened on SIGHUP; default standard error", set: text(func(c *Config) *string { return &c.AuditLog })},
	),
	group("Process",
		Setting{Name: "config", Kind: "file", Help: "YAML file with settings by these names"},
		Setting{Name: "name", Kind: "text", Help: "name of this daemon among others on the same Redis, at /v1/live?scope=all; default the host name and the process ID", set: optional(daemonName)},
		Setting{Name: "log-level", Kind: "level", Default: "info", Help: "minimum level of log lines: debug, info, warn or error", Values: []string{"debug", "info", "warn", "error"}, set: logLevel},
		Setting{Name: "log-format", Kind: "format", Default: "text", Help: "format of log lines: text or json", Values: logFormats, set: oneOf(func(c *Config) *string { return &c.LogFormat }, logFormats)},
		Setting{Name: "log-denials", Kind: "limit", Help: "log denials, at most this many, such as 10/s; default none", set: optional(denialLimit)},
		Setting{Name: "shutdown-delay", Kind: "duration", Default: "0s", Help: "time between reporting not ready and closing the listeners, for load balancers to notice", set: duration(func(c *Config) *time.Duration { return &c.ShutdownDelay })},
		Setting{Name: "shutdown-grace", Kind: "duration", Default: "10s", Help: "maximum wait for requests in flight on shutdown; 0s aborts them", set: duration(func(c *Config) *time.Duration { return &c.ShutdownGrace })},
	),
)

// listenerSettings returns the settings that every listener has.
func listenerSettings(name, addr, what string, of func(*Config) *ListenConfig) []Setting {
	return group("Listener "+name,
		Setting{Name: name, Kind: "address", Default: addr, Help: what + `; empty disables it`, set: func(c *Config, text string) error {
			of(c).Addr = text
			return checkAddr(text)
		}},
		Setting{Name: name + "-tls-cert", Kind: "file", Help: "TLS certificate chain, PEM; reloaded on change", set: text(func(c *Config) *string { return &of(c).Cert })},
		Setting{Name: name + "-tls-key", Kind: "file", Help: "TLS private key, PEM", set: text(func(c *Config) *string { return &of(c).Key })},
		Setting{Name: name + "-tls-client-ca", Kind: "file", Help: "CA certificates, PEM; require clients to present a certificate that one of them signed", set: text(func(c *Config) *string { return &of(c).ClientCA })},
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

func findSetting(matches func(*Setting) bool) *Setting {
	if i := slices.IndexFunc(Settings, func(s Setting) bool { return matches(&s) }); i >= 0 {
		return &Settings[i]
	}
	return nil
}

func envNames() (names []string) {
	for i := range Settings {
		names = append(names, Settings[i].Env())
	}
	return names
}

func settingNames() (names []string) {
	for i := range Settings {
		names = append(names, Settings[i].Name)
	}
	return names
}

func text(of func(*Config) *string) func(*Config, string) error {
	return func(c *Config, text string) error {
		*of(c) = text
		return nil
	}
}

// prefixForm matches the prefixes that redisstore accepts. They are checked here too, so that the error
// names the setting.
var prefixForm = regexp.MustCompile(`^[a-zA-Z0-9:_/-]*$`)

func setRedisPrefix(c *Config, text string) error {
	if c.RedisPrefix = text; !prefixForm.MatchString(text) {
		return fmt.Errorf("%q: want letters, digits and : _ - / only", text)
	}
	return nil
}

func oneOf(of func(*Config) *string, words []string) func(*Config, string) error {
	return func(c *Config, text string) error {
		*of(c) = text
		if !slices.Contains(words, text) {
			return fmt.Errorf("%q: want %s", text, strings.Join(words, " or "))
		}
		return nil
	}
}

func toggle(of func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, text string) (err error) {
		if *of(c), err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%q: want true or false", text)
		}
		return nil
	}
}

func count(of func(*Config) *int) func(*Config, string) error {
	return func(c *Config, text string) (err error) {
		if *of(c), err = strconv.Atoi(text); err != nil || *of(c) <= 0 {
			return fmt.Errorf("%q: want a whole number above zero", text)
		}
		return nil
	}
}

func daemonName(c *Config, text string) error {
	if len(text) > observe.MaxDaemonName || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%.80q: want at most %d printable bytes", text, observe.MaxDaemonName)
	}
	c.Name = text
	return nil
}

func topKeyCount(c *Config, text string) (err error) {
	if c.TopKeys, err = strconv.Atoi(text); err != nil || c.TopKeys < 0 || c.TopKeys > topkeys.MaxCounters {
		return fmt.Errorf("%q: want a whole number from 0 to %d", text, topkeys.MaxCounters)
	}
	return nil
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

func duration(of func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, text string) (err error) {
		if *of(c), err = time.ParseDuration(text); err != nil || *of(c) < 0 {
			return fmt.Errorf("%q: want a duration like 500ms or 10s", text)
		}
		return nil
	}
}

func positive(of func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, text string) error {
		if err := duration(of)(c, text); err != nil {
			return err
		}
		if *of(c) == 0 {
			return fmt.Errorf("%q: want more than zero", text)
		}
		return nil
	}
}

// fraction parses a part of a whole, from above 0 to 1.
func fraction(of func(*Config) *float64) func(*Config, string) error {
	return func(c *Config, text string) (err error) {
		if *of(c), err = strconv.ParseFloat(text, 64); err != nil || !(*of(c) > 0 && *of(c) <= 1) {
			return fmt.Errorf("%q: want a fraction like 0.5, above 0 and at most 1", text)
		}
		return nil
	}
}

// size parses a number of bytes, with or without a binary unit.
func size(of func(*Config) *int64) func(*Config, string) error {
	return func(c *Config, text string) error {
		number, unit := text, int64(1)
		for i, suffix := range []string{"KiB", "MiB", "GiB"} {
			if rest, ok := strings.CutSuffix(text, suffix); ok {
				number, unit = rest, 1<<(10*(i+1))
			}
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n <= 0 || n > 1<<62/unit {
			return fmt.Errorf("%q: want a size like 512MiB or 1GiB", text)
		}
		*of(c) = n * unit
		return nil
	}
}

func logLevel(c *Config, text string) error {
	if err := c.LogLevel.UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("%q: want debug, info, warn or error", text)
	}
	return nil
}

func denialLimit(c *Config, text string) (err error) {
	if c.LogDenials, err = penstock.ParseLimit(text); err != nil {
		return fmt.Errorf("%q: want a limit like 10/s: %w", text, err)
	}
	return nil
}

func headers(c *Config, text string) (err error) {
	c.Headers, err = httplimit.ParseForm(text)
	return err
}

// trustedProxies parses addresses and networks with commas between them.
func trustedProxies(c *Config, text string) error {
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		networks, err := parseNetworks(word)
		if err != nil {
			return err
		}
		c.TrustedProxies = append(c.TrustedProxies, networks...)
	}
	return nil
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

func headerNames(c *Config, text string) error {
	names := strings.Split(text, ",")
	if len(names) != 3 || slices.ContainsFunc(names, func(n string) bool { return !headerName.MatchString(n) }) {
		return fmt.Errorf("%q: want three names with commas between them", text)
	}
	c.EnvoyHeaderNames = [3]string(names)
	return nil
}

func rulesXDS(c *Config, text string) (err error) {
	c.RulesXDS, err = xds.ParseURL(text)
	return err
}

// storeURL leaves the URL out of its errors: it may contain a password.
func storeURL(c *Config, text string) error {
	c.Store = text
	scheme, _, _ := strings.Cut(text, ":")
	if scheme == "memory" && text != "memory:" {
		return errors.New("want memory: without a path, or redis://host:port")
	}
	if !slices.Contains([]string{"memory", "redis", "rediss", "unix", "redis-sentinel", "redis-cluster"}, scheme) {
		return fmt.Errorf("scheme %q: want memory:, redis://, rediss://, unix://, redis-sentinel:// or redis-cluster://", scheme)
	}
	return nil
}
