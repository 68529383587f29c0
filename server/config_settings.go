package server

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/httplimit"
)

// A Setting is one thing that an operator can set: by a flag, by a variable of the
// environment or in the file.
type Setting struct {
	Name    string // of the flag, and in the file
	Kind    string // of value, in a word; "" for a switch
	Default string
	Help    string
	Group   string // under which it is listed

	set func(c *Config, text string) error
}

// Env returns the name of the setting's variable.
func (s *Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Settings are all there are. Flags, variables, the file and the documentation
// follow this table.
var Settings = slices.Concat(
	group("What is limited",
		Setting{Name: "rules", Kind: "path", Help: "rule file, or folder of rule files; read again when it changes", set: text(func(c *Config) *string { return &c.Rules })},
		Setting{Name: "merge-domains", Default: "false", Help: "let several rule files add to one domain", set: toggle(func(c *Config) *bool { return &c.MergeDomains })},
		Setting{Name: "shadow", Default: "false", Help: "deny nothing, and count what would have been denied", set: toggle(func(c *Config) *bool { return &c.Shadow })},
	),
	group("Where counts are kept",
		Setting{Name: "store", Kind: "url", Default: memoryURL, Help: "memory: for this process alone, or redis://, rediss://, unix://, redis-sentinel:// or redis-cluster://", set: storeURL},
		Setting{Name: "max-keys", Kind: "number", Default: "1000000", Help: "most keys in memory; new keys beyond them share one bucket a limit", set: count(func(c *Config) *int { return &c.MaxKeys })},
		Setting{Name: "max-bytes", Kind: "size", Default: "1GiB", Help: "most memory for sliding logs and rolling windows", set: size(func(c *Config) *int64 { return &c.MaxBytes })},
		Setting{Name: "redis-prefix", Kind: "text", Default: "p", Help: "what the names of all keys in Redis begin with", set: text(func(c *Config) *string { return &c.RedisPrefix })},
		Setting{Name: "redis-timeout", Kind: "duration", Default: "50ms", Help: "longest wait for Redis, retries included", set: positive(func(c *Config) *time.Duration { return &c.RedisTimeout })},
	),
	group("How counts outlive the process, in memory",
		Setting{Name: "data", Kind: "folder", Help: "folder to keep counts in; without one they end with the process", set: text(func(c *Config) *string { return &c.Data })},
		Setting{Name: "snapshot-interval", Kind: "duration", Default: "1m", Help: "how often they are saved, besides at the end; a crash loses no more than that", set: positive(func(c *Config) *time.Duration { return &c.SnapshotInterval })},
	),
	group("When Redis is away, or busy",
		Setting{Name: "nodes", Kind: "number", Default: "1", Help: "how many servers share Redis: while it is away, each grants its share of a limit", set: count(func(c *Config) *int { return &c.Nodes })},
		Setting{Name: "on-store-failure", Kind: "mode", Default: "local", Help: "what becomes of requests while it is away, where no rule says on_store_failure: local, allow or deny", set: oneOf(func(c *Config) *string { return &c.OnStoreFailure }, "local", "allow", "deny")},
		Setting{Name: "deny-cache", Default: "true", Help: "remember denials for up to a second, where no rule says deny_cache", set: toggle(func(c *Config) *bool { return &c.DenyCache })},
		Setting{Name: "lease", Default: "false", Help: "take units of busy token buckets ahead and spend them here, where no rule says lease; limits may be exceeded by a tenth of their burst", set: toggle(func(c *Config) *bool { return &c.Lease })},
	),
	listenerSettings("grpc", ":8081", "Envoy's rate limit service", func(c *Config) *ListenConfig { return &c.GRPC }),
	listenerSettings("http", ":8080", "JSON over HTTP, and auth requests of proxies", func(c *Config) *ListenConfig { return &c.HTTP }),
	listenerSettings("resp", ":6380", "CL.THROTTLE for Redis clients", func(c *Config) *ListenConfig { return &c.RESP }),
	listenerSettings("admin", "127.0.0.1:6070", "health, metrics and keys", func(c *Config) *ListenConfig { return &c.Admin }),
	group("What doors do",
		Setting{Name: "headers", Kind: "form", Default: "ietf", Help: "rate limit headers of the HTTP door: ietf, ietf-06, x-ratelimit, github, kong, envoy-03 or none", set: headers},
		Setting{Name: "resp-auth", Default: "false", Help: "Redis clients must AUTH with the token before anything else", set: toggle(func(c *Config) *bool { return &c.RESPAuth })},
		Setting{Name: "envoy-headers", Default: "false", Help: "give Envoy RateLimit-Limit, -Remaining and -Reset to add to responses", set: toggle(func(c *Config) *bool { return &c.EnvoyHeaders })},
		Setting{Name: "envoy-header-names", Kind: "names", Default: "RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset", Help: "what those three are called", set: headerNames},
		Setting{Name: "envoy-metadata", Default: "false", Help: "give Envoy what was asked, and the rules' metadata, as dynamic metadata", set: toggle(func(c *Config) *bool { return &c.EnvoyMetadata })},
		Setting{Name: "max-connections", Kind: "number", Default: "10000", Help: "most connections of a door; others are closed at once", set: count(func(c *Config) *int { return &c.MaxConnections })},
		Setting{Name: "max-connections-per-address", Kind: "number", Help: "most connections of a door from one address of another machine, or one /64 of IPv6; not set, half of --max-connections, for a proxy is one address too", set: optional(count(func(c *Config) *int { return &c.MaxConnectionsPerAddress }))},
		Setting{Name: "pprof", Default: "false", Help: "tell profiles of the running process at /debug/pprof/ of the admin door", set: toggle(func(c *Config) *bool { return &c.Profiles })},
		Setting{Name: "token", Kind: "text", Help: "lets callers on other machines give back and reset, and open the admin door; others can read it off the command line", set: text(func(c *Config) *string { return &c.Token })},
		Setting{Name: "token-file", Kind: "file", Help: "file that holds the token", set: text(func(c *Config) *string { return &c.TokenFile })},
	),
	group("How it runs",
		Setting{Name: "config", Kind: "file", Help: "YAML file of settings by these names"},
		Setting{Name: "log-level", Kind: "level", Default: "info", Help: "debug, info, warn or error", set: logLevel},
		Setting{Name: "log-format", Kind: "format", Default: "text", Help: "text or json", set: oneOf(func(c *Config) *string { return &c.LogFormat }, "text", "json")},
		Setting{Name: "shutdown-delay", Kind: "duration", Default: "0s", Help: "time between telling that the server is not ready any more and closing its doors, for load balancers to notice", set: duration(func(c *Config) *time.Duration { return &c.ShutdownDelay })},
		Setting{Name: "shutdown-grace", Kind: "duration", Default: "10s", Help: "longest wait for requests under way when the doors close", set: duration(func(c *Config) *time.Duration { return &c.ShutdownGrace })},
	),
)

// listenerSettings returns the settings that every door has.
func listenerSettings(name, addr, what string, of func(*Config) *ListenConfig) []Setting {
	return group("The door "+name,
		Setting{Name: name, Kind: "address", Default: addr, Help: what + `; "" keeps the door shut`, set: func(c *Config, text string) error {
			of(c).Addr = text
			return checkAddr(text)
		}},
		Setting{Name: name + "-tls-cert", Kind: "file", Help: "certificate and its chain; read again when it changes", set: text(func(c *Config) *string { return &of(c).Cert })},
		Setting{Name: name + "-tls-key", Kind: "file", Help: "the certificate's key", set: text(func(c *Config) *string { return &of(c).Key })},
		Setting{Name: name + "-tls-client-ca", Kind: "file", Help: "only let in clients whose certificate one of these has signed", set: text(func(c *Config) *string { return &of(c).ClientCA })},
	)
}

func group(name string, settings ...Setting) []Setting {
	for i := range settings {
		settings[i].Group = name
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

func oneOf(of func(*Config) *string, words ...string) func(*Config, string) error {
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

// optional leaves a field as it is where nothing is set.
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

// size reads a number of bytes, with one of the units that people write.
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

func headers(c *Config, text string) (err error) {
	c.Headers, err = httplimit.ParseForm(text)
	return err
}

// headerName is what RFC 9110 calls a token.
var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]{1,64}$")

func headerNames(c *Config, text string) error {
	names := strings.Split(text, ",")
	if len(names) != 3 || slices.ContainsFunc(names, func(n string) bool { return !headerName.MatchString(n) }) {
		return fmt.Errorf("%q: want three names with commas between them", text)
	}
	c.EnvoyHeaderNames = [3]string(names)
	return nil
}

// storeURL does not repeat what it refuses, which may hold a password.
func storeURL(c *Config, text string) error {
	c.Store = text
	scheme, _, _ := strings.Cut(text, ":")
	if scheme == "memory" && text != "memory:" {
		return errors.New("want memory: as it is, or redis:// and where it is")
	}
	if !slices.Contains([]string{"memory", "redis", "rediss", "unix", "redis-sentinel", "redis-cluster"}, scheme) {
		return fmt.Errorf("scheme %q: want memory:, redis://, rediss://, unix://, redis-sentinel:// or redis-cluster://", scheme)
	}
	return nil
}
