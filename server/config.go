package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/envoy/ratelimit"
	"github.com/penstock-io/penstock/server/envoy/xds"
	"github.com/penstock-io/penstock/server/internal/tracing"
)

// Config configures a server. [LoadConfig] makes one; [Settings] documents each field
// and its default.
type Config struct {
	Rules          string      // a path or a URL
	CandidateRules string      // "": none are tried
	RulesXDS       *xds.Config // nil: rules come from Rules
	MergeDomains   bool
	Shadow         bool
	Unmatched      string // allow or deny
	Compat         string // envoy, or "" for the compat of each domain

	RulesCredentials     string
	RulesCredentialsFile string

	Store        string
	MaxKeys      int
	MaxBytes     int64
	RedisPrefix  string
	RedisTimeout time.Duration
	SQLTable     string
	SQLTimeout   time.Duration

	RequestLimits              string // on, local or off
	RequestLimitsMaxPeriod     time.Duration
	RequestLimitsMaxKeyBytes   int64
	RequestLimitsMaxRedisBytes int64
	RequestLimitsShare         float64

	Nodes          int
	OnStoreFailure string // local, allow or deny
	DenyCache      bool
	DenyCacheAge   time.Duration
	Lease          bool

	Home          string // "": limits hold in this region
	HomeTokenFile string
	HomeTimeout   time.Duration
	Regions       int
	RoundTrip     time.Duration

	Data             string
	SnapshotInterval time.Duration

	Record         string // directory; "": requests are not recorded
	RecordMaxBytes int64
	RecordSample   float64
	RecordHash     []string

	GRPC  ListenConfig
	HTTP  ListenConfig
	RESP  ListenConfig
	Admin ListenConfig

	Pprof                    bool
	TopKeys                  int // 0: keys are not counted
	MaxConnections           int
	MaxConnectionsPerAddress int // 0: half of MaxConnections
	Token                    string
	TokenFile                string
	Tokens                   []callers.Token // of the TokenFile
	TrustLocal               bool
	AdminActions             bool
	AuditLog                 string // "": stderr

	Headers          httplimit.Form
	TrustedProxies   []netip.Prefix
	RESPAuth         bool
	EnvoyHeaders     bool
	EnvoyHeaderNames [3]string // limit, remaining, reset
	EnvoyMetadata    bool
	RLQS             bool
	MaxDescriptors   int
	MaxEntries       int

	ShutdownDelay time.Duration
	ShutdownGrace time.Duration

	Name       string // "": host name and process ID
	LogLevel   slog.Level
	LogFormat  string
	LogDenials penstock.Limit // zero: denials are not logged

	TraceKeys bool
	Traces    *tracing.Config // nil: nothing is traced

	// Ratelimit is set for a server in place of envoyproxy/ratelimit.
	Ratelimit *ratelimit.Role

	// Origins says where values come from, by the names of their settings:
	// "PENSTOCK_STORE", or "penstock.yaml:3: store". Errors about a setting without
	// an origin name its flag.
	Origins map[string]string
}

// A ListenConfig is the address and the TLS files of a listener.
type ListenConfig struct {
	Addr     string // "" disables the listener
	Cert     string // PEM files; "" for plaintext
	Key      string
	ClientCA string // if set, clients must present a certificate that one of these signed

	ClientSAN string // if set, that certificate must have this name
}

// LoadConfig merges flags, environment variables and the config file: a flag wins over
// a variable, a variable over the file, and the file over the default. Flags are keyed
// by the name of their setting. The environment has the form of [os.Environ]. Errors
// name the place of the bad value.
func LoadConfig(flags map[string]string, environ []string) (*Config, error) {
	c, err := MergeSettings(flags, environ)
	if err != nil {
		return nil, err
	}
	if c.Traces, err = tracing.ReadEnvironment(environ); err != nil {
		return nil, err
	}
	return c, c.check()
}

// MergeSettings is [LoadConfig] for clients of a daemon: it neither checks the settings
// together nor opens a file that they name, except the config file.
func MergeSettings(flags map[string]string, environ []string) (*Config, error) {
	return mergeSettings(flags, environ, nil)
}

// values are those of one source of settings, by the names of these.
type values map[string]value

// A value is the text of a setting, and where it comes from; "" if that is a flag.
type value struct{ text, from string }

// mergeSettings is MergeSettings with other defaults for some settings.
func mergeSettings(flags map[string]string, environ []string, defaults values) (*Config, error) {
	given := values{}
	for name, text := range flags {
		given[name] = value{text: text}
	}
	env, err := settingsFromEnv(environ)
	if err != nil {
		return nil, err
	}
	path := env["config"]
	if flag, ok := given["config"]; ok {
		path = flag
	}
	file, err := settingsFromFile(path.text)
	if err != nil {
		return nil, err
	}
	c := &Config{Origins: map[string]string{}}
	for i := range Settings {
		if err := Settings[i].load(c, given, env, file, defaults); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// load sets the setting's field from the first source that has a value.
func (s *Setting) load(c *Config, sources ...values) error {
	if s.set == nil {
		return nil // the path of the config file, which is read already
	}
	found := value{text: s.Default}
	for _, source := range sources {
		if v, ok := source[s.Name]; ok {
			found = v
			break
		}
	}
	if found.from != "" {
		c.Origins[s.Name] = found.from
	}
	if err := s.set(c, found.text); err != nil {
		return fmt.Errorf("%s: %w", c.origin(s.Name), err)
	}
	return nil
}

// origin returns where a setting's value comes from, for messages. For a default it is
// the flag, by which the setting can be changed.
func (c *Config) origin(name string) string {
	if at, ok := c.Origins[name]; ok {
		return at
	}
	return "--" + name
}

const envPrefix = "PENSTOCK_"

// settingsFromEnv returns the values in the environment by the names of their settings.
func settingsFromEnv(environ []string) (values, error) {
	found := values{}
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || isServiceLink(name, text) {
			continue
		}
		s, err := findSetting(name, (*Setting).Env)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found[s.Name] = value{text, name}
	}
	return found, nil
}

// serviceLink matches the variables that Kubernetes sets in every container for each
// service, if the service is named penstock or penstock-something.
var serviceLink = regexp.MustCompile(`^PENSTOCK(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

func isServiceLink(name, text string) bool {
	return serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}

// check returns an error if settings contradict each other. It reads the token file.
func (c *Config) check() error {
	enabled := 0
	for _, l := range c.listenConfigs() {
		if err := c.checkTLS(l); err != nil {
			return err
		}
		if l.Addr != "" {
			enabled++
		}
	}
	if enabled == 0 {
		return errors.New("no listener enabled: set at least one of --grpc, --http, --resp and --admin")
	}
	if c.RLQS && c.GRPC.Addr == "" {
		return fmt.Errorf("%s: requires --grpc", c.origin("rlqs"))
	}
	if c.Rules != "" && c.RulesXDS != nil {
		return fmt.Errorf("%s and %s: want one of them", c.origin("rules"), c.origin("rules-xds"))
	}
	if c.RulesCredentials != "" && c.RulesCredentialsFile != "" {
		return fmt.Errorf("%s and %s: want one of them", c.origin("rules-credentials"), c.origin("rules-credentials-file"))
	}
	if err := c.checkRegions(); err != nil {
		return err
	}
	if err := c.readTokens(); err != nil {
		return err
	}
	if c.RESPAuth && !c.HasToken() {
		return fmt.Errorf("%s: requires --token-file or --token", c.origin("resp-auth"))
	}
	return nil
}

type namedListenConfig struct {
	name string
	ListenConfig
}

func (c *Config) listenConfigs() []namedListenConfig {
	return []namedListenConfig{{"grpc", c.GRPC}, {"http", c.HTTP}, {"resp", c.RESP}, {"admin", c.Admin}}
}

func (c *Config) checkTLS(l namedListenConfig) error {
	cert, key, ca := l.name+"-tls-cert", l.name+"-tls-key", l.name+"-tls-client-ca"
	switch {
	case l.Cert == "" && l.Key != "":
		return fmt.Errorf("%s without --%s: want both", c.origin(key), cert)
	case l.Cert != "" && l.Key == "":
		return fmt.Errorf("%s without --%s: want both", c.origin(cert), key)
	case l.ClientCA != "" && l.Cert == "":
		return fmt.Errorf("%s without --%s and --%s: client certificates require TLS", c.origin(ca), cert, key)
	}
	return nil
}

// unixScheme begins the address of a listener on a Unix socket.
const unixScheme = "unix:"

// parseAddr returns an error if the address of a listener has no valid form.
func parseAddr(addr string) (string, error) {
	if path, ok := strings.CutPrefix(addr, unixScheme); addr == "" || ok && path != "" {
		return addr, nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("%q: want an address like 127.0.0.1:8080 or :8080, unix:/path, or \"\" to disable the listener", addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return "", fmt.Errorf("%q: want a port from 0 to 65535", addr)
	}
	return addr, nil
}
