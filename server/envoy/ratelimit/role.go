// Package ratelimit lets the daemon stand in for envoyproxy/ratelimit: it is configured by that
// service's environment variables, and has its statistics, for Prometheus and for statsd.
package ratelimit

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

	"github.com/penstock-io/penstock/server/envoy/xds"
)

// A Role is what the variables of envoyproxy/ratelimit say.
type Role struct {
	// Settings are the daemon's settings, by their names.
	Settings map[string]Setting

	// What the daemon has no settings for:
	LocalCacheBytes  int64 // 0: keys over their limit are not remembered
	QuotaMode        bool
	StopIncrement    bool
	CalendarMonth    bool      // windows of a month are those of the calendar
	RequestHeaders   [3]string // names of headers for requests; empty: none
	HealthyWithRules bool      // health checks fail until rules are loaded

	UseTLS    bool   // of gRPC
	ClientSAN string // name in the certificates of clients; "": any

	ConnectionAge, ConnectionAgeGrace time.Duration // of gRPC; 0: the defaults

	Stats Stats

	// Notes are log lines about variables without effect.
	Notes []string
}

// A Setting is the value of a setting, and the variables that it comes from.
type Setting struct{ Text, From string }

// Stats are the settings of the statistics.
type Stats struct {
	NearLimitRatio float64
	SanitizeDots   bool // in keys and values

	PrometheusAddr string // "": none
	PrometheusPath string

	StatsdAddr    string // "": none
	StatsdNetwork string // tcp or udp
	DogStatsd     bool   // tags are not parts of names
	FlushInterval time.Duration

	Tags []Tag // of all of them
}

// IsOn reports whether there are statistics.
func (s *Stats) IsOn() bool { return s.PrometheusAddr != "" || s.StatsdAddr != "" }

// A Tag is a name and a value that all statistics have.
type Tag struct{ Name, Value string }

// label returns the name as that of a label of Prometheus.
func (t Tag) label() string {
	label := metricName(t.Name)
	if label[0] <= '9' { // a digit, which no label begins with
		return "_" + label
	}
	return label
}

// metricName returns a text with underscores for what names of Prometheus cannot have.
func metricName(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, text)
}

// ReadEnvironment reads the variables of an environment, in the form of [os.Environ]. Others have
// no effect.
func ReadEnvironment(environ []string) (*Role, error) {
	e := &environment{values: map[string]string{}, role: &Role{
		Settings: map[string]Setting{},
		Stats:    Stats{NearLimitRatio: 0.8, FlushInterval: 10 * time.Second},
	}}
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		e.values[name] = text
	}
	return e.role, e.apply()
}

// TellingVariables returns those variables of an environment that envoyproxy/ratelimit often has, and
// whether the environment is meant for it: whether one of them is set as no other program has it. A
// platform or another program may set the others, REDIS_URL above all.
func TellingVariables(environ []string) (names []string, isMeant bool) {
	common := []string{"REDIS_URL", "USE_STATSD", "BACKEND_TYPE", "CONFIG_TYPE"}
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		isOwn := slices.Contains(ownVariables, name) || name == "CONFIG_TYPE" && text == configTypeXDS
		if text != "" && (isOwn || slices.Contains(common, name)) {
			names, isMeant = append(names, name), isMeant || isOwn
		}
	}
	slices.Sort(names)
	return names, isMeant
}

// An environment turns variables into a role.
type environment struct {
	values map[string]string
	role   *Role
}

// apply sets the role's defaults, and then what the variables say.
func (e *environment) apply() error {
	for name, text := range map[string]string{
		"resp": "", "compat": "envoy", "trust-local": "false", "log-level": "warn", "redis-timeout": "1s", "deny-cache": "false",
	} {
		e.set(name, text, "penstock ratelimit")
	}
	for i := range variables {
		v := &variables[i]
		value := e.get(v.name, "")
		if value == "" {
			continue
		}
		if err := v.read(e, value); err != nil {
			return fmt.Errorf("%s=%s: %w", v.name, loggable(v.name, value), err)
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

func (e *environment) set(setting, text, from string) {
	e.role.Settings[setting] = Setting{text, from}
}

// get returns the value of a variable, or what envoyproxy/ratelimit takes without it.
func (e *environment) get(name, otherwise string) string {
	if value := e.values[name]; value != "" {
		return value
	}
	return otherwise
}

// flag returns a boolean variable that was checked already.
func (e *environment) flag(name string) bool {
	on, _ := strconv.ParseBool(e.get(name, "false"))
	return on
}

// combine sets what several variables say together.
func (e *environment) combine() error {
	for _, l := range []struct{ setting, host, port, otherwise string }{
		{"http", "HOST", "PORT", "8080"}, {"grpc", "GRPC_HOST", "GRPC_PORT", "8081"}, {"admin", "DEBUG_HOST", "DEBUG_PORT", "6070"},
	} {
		e.set(l.setting, net.JoinHostPort(e.get(l.host, "0.0.0.0"), e.get(l.port, l.otherwise)), l.host+", "+l.port)
	}
	if path := e.get("GRPC_UDS", ""); path != "" {
		e.set("grpc", "unix:"+path, "GRPC_UDS")
	}
	if err := e.combineTLS(); err != nil {
		return err
	}
	if err := e.combineRules(); err != nil {
		return err
	}
	names := e.headerNames("LIMIT_")
	e.set("envoy-header-names", strings.Join(names[:], ","), "LIMIT_LIMIT_HEADER, LIMIT_REMAINING_HEADER, LIMIT_RESET_HEADER")
	if e.flag("LIMIT_REQUEST_HEADERS_ENABLED") {
		e.role.RequestHeaders = e.headerNames("LIMIT_REQUEST_")
	}
	store, err := e.store()
	if err != nil {
		return err
	}
	e.set("store", store, "REDIS_URL, REDIS_AUTH")
	return e.combineStats()
}

// headerNames returns the names of headers with the limit, what remains of it, and the time until its reset.
func (e *environment) headerNames(prefix string) [3]string {
	return [3]string{
		e.get(prefix+"LIMIT_HEADER", "RateLimit-Limit"), e.get(prefix+"REMAINING_HEADER", "RateLimit-Remaining"), e.get(prefix+"RESET_HEADER", "RateLimit-Reset"),
	}
}

// combineTLS sets the certificates of the gRPC listener.
func (e *environment) combineTLS() error {
	e.role.UseTLS, e.role.ClientSAN = e.flag("GRPC_SERVER_USE_TLS"), e.get("GRPC_CLIENT_TLS_SAN", "")
	if e.role.ClientSAN != "" && (!e.role.UseTLS || e.get("GRPC_CLIENT_TLS_CACERT", "") == "") {
		return errors.New("GRPC_CLIENT_TLS_SAN: without GRPC_SERVER_USE_TLS=true and GRPC_CLIENT_TLS_CACERT clients have no certificate")
	}
	if !e.role.UseTLS {
		return nil
	}
	for setting, variable := range map[string]string{
		"grpc-tls-cert": "GRPC_SERVER_TLS_CERT", "grpc-tls-key": "GRPC_SERVER_TLS_KEY", "grpc-tls-client-ca": "GRPC_CLIENT_TLS_CACERT",
	} {
		e.set(setting, e.get(variable, ""), variable)
	}
	return nil
}

// combineRules sets where rules come from.
func (e *environment) combineRules() error {
	if e.usesXDS() {
		return e.combineXDS()
	}
	e.set("rules", filepath.Join(e.get("RUNTIME_ROOT", "/srv/runtime_data/current"), e.get("RUNTIME_SUBDIRECTORY", ""), e.get("RUNTIME_APPDIRECTORY", "config")),
		"RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY")
	return nil
}

// store returns the URL of Redis.
func (e *environment) store() (string, error) {
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
		e.setTLS(query)
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

func (e *environment) setTLS(query url.Values) {
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

// setSingle sets the address of one server. It may be a URL, as for the client of envoyproxy/ratelimit.
func (e *environment) setSingle(u *url.URL, address string) {
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
func (e *environment) combineStats() error {
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

func (e *environment) combinePrometheus() error {
	s := &e.role.Stats
	s.PrometheusAddr, s.PrometheusPath = e.get("PROMETHEUS_ADDR", ":9090"), e.get("PROMETHEUS_PATH", "/metrics")
	if !strings.HasPrefix(s.PrometheusPath, "/") || strings.ContainsAny(s.PrometheusPath, "{}") {
		return fmt.Errorf("PROMETHEUS_PATH=%q: want a path like /metrics", s.PrometheusPath)
	}
	e.leaveOutTags()
	if _, _, err := net.SplitHostPort(s.PrometheusAddr); err != nil || strings.HasPrefix(s.PrometheusAddr, "unix:") {
		return fmt.Errorf("PROMETHEUS_ADDR=%q: want an address like :9090", s.PrometheusAddr)
	}
	return nil
}

// leaveOutTags removes tags that cannot be labels, because others have their names.
func (e *environment) leaveOutTags() {
	s := &e.role.Stats
	labels := slices.Clone(labelNames)
	s.Tags = slices.DeleteFunc(s.Tags, func(t Tag) bool {
		label := t.label()
		if strings.HasPrefix(label, "__") || slices.Contains(labels, label) {
			e.note("EXTRA_TAGS "+strconv.Quote(t.Name), "another label is called "+label)
			return true
		}
		labels = append(labels, label)
		return false
	})
}

// combineStatsd sets where statsd is. DogStatsD has UDP only.
func (e *environment) combineStatsd(dog bool) error {
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

// configTypeXDS is the CONFIG_TYPE by which rules come over xDS.
const configTypeXDS = "GRPC_XDS_SOTW"

func (e *environment) usesXDS() bool { return e.get("CONFIG_TYPE", "FILE") == configTypeXDS }

// combineXDS sets where rules come from over xDS.
func (e *environment) combineXDS() error {
	c := &xds.Config{
		Addr: strings.TrimPrefix(e.get("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"), "dns:///"),
		Node: e.get("CONFIG_GRPC_XDS_NODE_ID", "default"),
		Wait: !e.flag("FORCE_START_WITHOUT_INITIAL_CONFIG"),
	}
	if c.TLS = e.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS"); c.TLS {
		c.CA, c.ServerName = e.get("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ""), e.get("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "")
		c.Cert, c.Key = e.get("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", ""), e.get("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "")
	}
	var err error
	if c.Metadata, err = parsePairs(e.get("CONFIG_GRPC_XDS_NODE_METADATA", ""), "="); err != nil {
		return fmt.Errorf("CONFIG_GRPC_XDS_NODE_METADATA: %w", err)
	}
	if c.Headers, err = parsePairs(e.get("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", ""), ":"); err != nil {
		return fmt.Errorf("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: %w", err)
	}
	e.set("rules-xds", c.URL(), "CONFIG_GRPC_XDS_SERVER_URL")
	return nil
}

// parsePairs parses names and values with commas between them. Values are left out of errors:
// they may be secret.
func parsePairs(text, separator string) (map[string]string, error) {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), separator)
		switch {
		case pair == "":
		case !ok || name == "":
			return nil, fmt.Errorf("want name%svalue, with commas between them", separator)
		default:
			pairs[name] = value
		}
	}
	return pairs, nil
}
