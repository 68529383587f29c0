package server

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A RatelimitRole is what a server does in place of envoyproxy/ratelimit, beyond its settings:
// it is configured by that service's environment and serves its pages and statistics.
type RatelimitRole struct {
	LocalCacheBytes  int64 // 0: keys over their limit are not remembered
	QuotaMode        bool
	HealthyWithRules bool // health checks fail until rules are loaded

	ConnectionAge, ConnectionAgeGrace time.Duration // of gRPC; 0: the defaults

	Stats RatelimitStats

	// Notes are log lines about variables without effect.
	Notes []string
}

// RatelimitStats are the settings of the statistics in the names of envoyproxy/ratelimit.
type RatelimitStats struct {
	NearLimitRatio float64

	PrometheusAddr string // "": none
	PrometheusPath string

	StatsdAddr    string // "": none
	StatsdNetwork string // tcp or udp
	DogStatsd     bool   // tags are not parts of names
	FlushInterval time.Duration

	Tags []Tag // of all of them
}

// isOn reports whether there are statistics.
func (r *RatelimitStats) isOn() bool { return r.PrometheusAddr != "" || r.StatsdAddr != "" }

// A Tag is a name and a value that all statistics have.
type Tag struct{ Name, Value string }

// LoadRatelimitConfig is [LoadConfig] for a server in place of envoyproxy/ratelimit: the
// variables of that service set what flags, variables and the config file of this one do not.
func LoadRatelimitConfig(flags map[string]string, environ []string) (*Config, error) {
	env := &ratelimitEnv{values: map[string]string{}, settings: map[string]fileValue{}, role: newRatelimitRole()}
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		env.values[name] = text
	}
	if err := env.apply(); err != nil {
		return nil, err
	}
	c, err := mergeSettings(flags, environ, env.settings)
	if err != nil {
		return nil, err
	}
	if env.flag("GRPC_SERVER_USE_TLS") && c.GRPC.Cert == "" {
		return nil, errors.New("GRPC_SERVER_USE_TLS: want GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY with it")
	}
	c.Ratelimit = env.role
	c.GRPC.ClientSAN = env.get("GRPC_CLIENT_TLS_SAN", "")
	return c, c.check()
}

func newRatelimitRole() *RatelimitRole {
	return &RatelimitRole{Stats: RatelimitStats{NearLimitRatio: 0.8, FlushInterval: 10 * time.Second}}
}

// RatelimitVariables returns the names of all variables of envoyproxy/ratelimit.
func RatelimitVariables() (names []string) {
	for i := range ratelimitVariables {
		names = append(names, ratelimitVariables[i].name)
	}
	return names
}

// IsRatelimitEnvironment returns those variables of an environment by which envoyproxy/ratelimit
// is told from other programs.
func IsRatelimitEnvironment(environ []string) (names []string) {
	telling := []string{"RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "REDIS_SOCKET_TYPE", "REDIS_URL", "USE_STATSD", "BACKEND_TYPE", "CONFIG_TYPE"}
	for _, pair := range environ {
		if name, _, _ := strings.Cut(pair, "="); slices.Contains(telling, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A ratelimitEnv turns variables into settings.
type ratelimitEnv struct {
	values   map[string]string
	settings map[string]fileValue // by the setting's name, with the variable as its place
	role     *RatelimitRole
}

// A ratelimitVariable is a variable of envoyproxy/ratelimit: it is read by set, or it has no
// effect for a reason, unless its value is the one that says what happens here anyway.
type ratelimitVariable struct {
	name   string
	set    func(e *ratelimitEnv, name, value string) error
	reason string
	same   string
}

// apply sets the role's defaults, and then what the variables say.
func (e *ratelimitEnv) apply() error {
	for name, text := range map[string]string{
		"resp": "", "compat": "envoy", "trust-local": "false", "log-level": "warn", "redis-timeout": "1s", "deny-cache": "false",
	} {
		e.set(name, text, "penstock ratelimit")
	}
	for i := range ratelimitVariables {
		v := &ratelimitVariables[i]
		value, given := e.values[v.name]
		switch {
		case !given || value == "":
		case v.set != nil:
			if err := v.set(e, v.name, value); err != nil {
				return fmt.Errorf("%s=%s: %w", v.name, loggable(v.name, value), err)
			}
		case value != v.same:
			e.role.Notes = append(e.role.Notes, v.name+" has no effect: "+v.reason)
		}
	}
	return e.combine()
}

// loggable hides values that contain a password.
func loggable(name, value string) string {
	if strings.HasSuffix(name, "_AUTH") || strings.HasSuffix(name, "_URL") || strings.HasSuffix(name, "_HEADERS") {
		return "…"
	}
	return strconv.Quote(value)
}

func (e *ratelimitEnv) set(setting, text, from string) {
	e.settings[setting] = fileValue{text: text, at: from}
}

// get returns the value of a variable, or what envoyproxy/ratelimit takes without it.
func (e *ratelimitEnv) get(name, otherwise string) string {
	if value := e.values[name]; value != "" {
		return value
	}
	return otherwise
}

// flag returns a boolean variable that was checked already.
func (e *ratelimitEnv) flag(name string) bool {
	on, _ := strconv.ParseBool(e.get(name, "false"))
	return on
}

// combine sets what several variables say together.
func (e *ratelimitEnv) combine() error {
	for _, l := range []struct{ setting, host, port, otherwise string }{
		{"http", "HOST", "PORT", "8080"}, {"grpc", "GRPC_HOST", "GRPC_PORT", "8081"}, {"admin", "DEBUG_HOST", "DEBUG_PORT", "6070"},
	} {
		e.set(l.setting, net.JoinHostPort(e.get(l.host, "0.0.0.0"), e.get(l.port, l.otherwise)), l.host+", "+l.port)
	}
	if path := e.get("GRPC_UDS", ""); path != "" {
		e.set("grpc", unixScheme+path, "GRPC_UDS")
	}
	if e.flag("GRPC_SERVER_USE_TLS") {
		e.set("grpc-tls-cert", e.get("GRPC_SERVER_TLS_CERT", ""), "GRPC_SERVER_TLS_CERT")
		e.set("grpc-tls-key", e.get("GRPC_SERVER_TLS_KEY", ""), "GRPC_SERVER_TLS_KEY")
		e.set("grpc-tls-client-ca", e.get("GRPC_CLIENT_TLS_CACERT", ""), "GRPC_CLIENT_TLS_CACERT")
	}
	if e.get("GRPC_CLIENT_TLS_SAN", "") != "" && (!e.flag("GRPC_SERVER_USE_TLS") || e.get("GRPC_CLIENT_TLS_CACERT", "") == "") {
		return errors.New("GRPC_CLIENT_TLS_SAN: without GRPC_SERVER_USE_TLS=true and GRPC_CLIENT_TLS_CACERT clients have no certificate")
	}
	if err := e.combineRules(); err != nil {
		return err
	}
	e.set("envoy-header-names", strings.Join([]string{
		e.get("LIMIT_LIMIT_HEADER", "RateLimit-Limit"), e.get("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"), e.get("LIMIT_RESET_HEADER", "RateLimit-Reset"),
	}, ","), "LIMIT_LIMIT_HEADER, LIMIT_REMAINING_HEADER, LIMIT_RESET_HEADER")
	store, err := e.store()
	if err != nil {
		return err
	}
	e.set("store", store, "REDIS_URL")
	return e.combineStats()
}

// combineRules sets where rules come from.
func (e *ratelimitEnv) combineRules() error {
	if e.usesXDS() {
		return e.combineXDS()
	}
	e.set("rules", filepath.Join(e.get("RUNTIME_ROOT", "/srv/runtime_data/current"), e.get("RUNTIME_SUBDIRECTORY", ""), e.get("RUNTIME_APPDIRECTORY", "config")),
		"RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY")
	return nil
}

// store returns the URL of Redis.
func (e *ratelimitEnv) store() (string, error) {
	address, kind := e.get("REDIS_URL", "/var/run/nutcracker/ratelimit.sock"), strings.ToUpper(e.get("REDIS_TYPE", "SINGLE"))
	query := url.Values{}
	u := url.URL{Scheme: "redis", Host: address}
	if text := e.get("REDIS_AUTH", ""); text != "" {
		u.User = userinfo(text)
	}
	switch kind {
	case "SINGLE":
		e.setSingle(&u, address)
	case "CLUSTER":
		u.Scheme = "redis-cluster"
	case "SENTINEL":
		master, hosts, _ := strings.Cut(address, ",")
		u.Scheme, u.Host, u.Path = "redis-sentinel", hosts, "/"+master
		if text := e.get("REDIS_SENTINEL_AUTH", ""); text != "" {
			user := userinfo(text)
			password, _ := user.Password()
			query.Set("sentinel_user", user.Username())
			query.Set("sentinel_password", password)
		}
	default:
		return "", fmt.Errorf("REDIS_TYPE=%q: want SINGLE, SENTINEL or CLUSTER", kind)
	}
	if u.Scheme != "unix" && (u.Host == "" || strings.ContainsAny(u.Host, "/ ")) {
		return "", errors.New("REDIS_URL: want host:port, or more of them with commas between; and before them a master's name with REDIS_TYPE=SENTINEL")
	}
	if e.flag("REDIS_TLS") {
		query.Set("tls", "true")
		if e.flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
			query.Set("verify_hostname", "false")
		}
		for name, variable := range map[string]string{"cert": "REDIS_TLS_CLIENT_CERT", "key": "REDIS_TLS_CLIENT_KEY", "ca": "REDIS_TLS_CACERT"} {
			if path := e.get(variable, ""); path != "" {
				query.Set(name, path)
			}
		}
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// setSingle sets the address of one server. It may be a URL, as for the client of envoyproxy/ratelimit.
func (e *ratelimitEnv) setSingle(u *url.URL, address string) {
	given, err := url.Parse(address)
	switch {
	case strings.HasPrefix(address, "redis://") && err == nil && given.RawQuery == "":
		u.Host, u.Path = given.Host, given.Path
		if u.User == nil {
			u.User = given.User
		}
	case e.get("REDIS_SOCKET_TYPE", "unix") == "unix":
		u.Scheme, u.Host, u.Path = "unix", "", address
	}
}

// userinfo parses a password, or a user and a password.
func userinfo(text string) *url.Userinfo {
	if user, password, ok := strings.Cut(text, ":"); ok {
		return url.UserPassword(user, password)
	}
	return url.UserPassword("", text)
}

// combineStats sets where statistics go. Those for statsd are the default, as there.
func (e *ratelimitEnv) combineStats() error {
	prometheus, dog := e.flag("USE_PROMETHEUS"), e.flag("USE_DOG_STATSD")
	statsd := e.flag("USE_STATSD") || e.get("USE_STATSD", "") == "" && !prometheus && !dog
	switch {
	case e.flag("DISABLE_STATS"):
		return nil
	case prometheus && (statsd || dog) || statsd && dog: // as there
		return errors.New("USE_STATSD, USE_DOG_STATSD and USE_PROMETHEUS: want at most one of them to be true")
	case prometheus:
		return e.combinePrometheus()
	case statsd || dog:
		return e.combineStatsd(dog)
	}
	return nil
}

func (e *ratelimitEnv) combinePrometheus() error {
	s := &e.role.Stats
	s.PrometheusAddr, s.PrometheusPath = e.get("PROMETHEUS_ADDR", ":9090"), e.get("PROMETHEUS_PATH", "/metrics")
	if !strings.HasPrefix(s.PrometheusPath, "/") || strings.ContainsAny(s.PrometheusPath, "{}") {
		return fmt.Errorf("PROMETHEUS_PATH=%q: want a path like /metrics", s.PrometheusPath)
	}
	for _, tag := range s.Tags {
		if strings.HasPrefix(tag.Name, "__") || slices.Contains(ratelimitLabelNames, tag.Name) {
			return fmt.Errorf("EXTRA_TAGS: %q is the name of another label", tag.Name)
		}
	}
	if _, _, err := net.SplitHostPort(s.PrometheusAddr); err != nil || strings.HasPrefix(s.PrometheusAddr, unixScheme) {
		return fmt.Errorf("PROMETHEUS_ADDR=%q: want an address like :9090", s.PrometheusAddr)
	}
	return nil
}

// combineStatsd sets where statsd is. DogStatsD has UDP only.
func (e *ratelimitEnv) combineStatsd(dog bool) error {
	s := &e.role.Stats
	s.StatsdAddr = net.JoinHostPort(e.get("STATSD_HOST", "localhost"), e.get("STATSD_PORT", "8125"))
	s.DogStatsd, s.StatsdNetwork = dog, "udp"
	if dog {
		return nil
	}
	s.StatsdNetwork = strings.ToLower(e.get("STATSD_PROTOCOL", "tcp"))
	if s.StatsdNetwork != "tcp" && s.StatsdNetwork != "udp" {
		return fmt.Errorf("STATSD_PROTOCOL=%q: want tcp or udp", s.StatsdNetwork)
	}
	return nil
}
