package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/spelling"
)

// Config configures a server. [LoadConfig] makes one; [Settings] documents each field
// and its default.
type Config struct {
	Rules        string
	MergeDomains bool
	Shadow       bool

	Store        string
	MaxKeys      int
	MaxBytes     int64
	RedisPrefix  string
	RedisTimeout time.Duration

	Nodes          int
	OnStoreFailure string // local, allow or deny
	DenyCache      bool
	Lease          bool

	Data             string
	SnapshotInterval time.Duration

	GRPC  ListenConfig
	HTTP  ListenConfig
	RESP  ListenConfig
	Admin ListenConfig

	Pprof                    bool
	MaxConnections           int
	MaxConnectionsPerAddress int // 0: half of MaxConnections
	Token                    string
	TokenFile                string

	Headers          httplimit.Form
	RESPAuth         bool
	EnvoyHeaders     bool
	EnvoyHeaderNames [3]string // limit, remaining, reset
	EnvoyMetadata    bool

	ShutdownDelay time.Duration
	ShutdownGrace time.Duration

	LogLevel  slog.Level
	LogFormat string
}

// A ListenConfig is the address and the TLS files of a listener.
type ListenConfig struct {
	Addr     string // "" disables the listener
	Cert     string // PEM files; "" for plaintext
	Key      string
	ClientCA string // if set, clients must present a certificate that one of these signed
}

// LoadConfig merges flags, environment variables and the config file: a flag wins over
// a variable, a variable over the file, and the file over the default. Flags are keyed
// by the name of their setting. The environment has the form of [os.Environ]. Errors
// name the place of the bad value.
func LoadConfig(flags map[string]string, environ []string) (*Config, error) {
	env, err := settingsFromEnv(environ)
	if err != nil {
		return nil, err
	}
	file, err := settingsFromFile(firstSet("config", flags, env))
	if err != nil {
		return nil, err
	}
	c := &Config{}
	for i := range Settings {
		if err := Settings[i].load(c, flags, env, file); err != nil {
			return nil, err
		}
	}
	return c, c.check()
}

// load sets the setting's field from the first source that has a value.
func (s *Setting) load(c *Config, flags, env map[string]string, file map[string]fileValue) error {
	if s.set == nil {
		return nil // the path of the config file, which is read already
	}
	if text, ok := flags[s.Name]; ok {
		return s.apply(c, "--"+s.Name, text)
	}
	if text, ok := env[s.Name]; ok {
		return s.apply(c, s.Env(), text)
	}
	if v, ok := file[s.Name]; ok {
		return s.apply(c, v.at+": "+s.Name, v.text)
	}
	return s.apply(c, "default of "+s.Name, s.Default)
}

func (s *Setting) apply(c *Config, where, text string) error {
	if err := s.set(c, text); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

func firstSet(name string, from ...map[string]string) string {
	for _, values := range from {
		if text, ok := values[name]; ok {
			return text
		}
	}
	return ""
}

const envPrefix = "PENSTOCK_"

// settingsFromEnv returns the values in the environment by the names of their settings.
func settingsFromEnv(environ []string) (map[string]string, error) {
	found := map[string]string{}
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || isServiceLink(name, text) {
			continue
		}
		s := findSetting(func(s *Setting) bool { return s.Env() == name })
		if s == nil {
			return nil, fmt.Errorf("%s: no such setting; the nearest is %s", name, spelling.Nearest(name, envNames()))
		}
		found[s.Name] = text
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
		if err := l.check(); err != nil {
			return err
		}
		if l.Addr != "" {
			enabled++
		}
	}
	if enabled == 0 {
		return errors.New("no listener enabled: set at least one of --grpc, --http, --resp and --admin")
	}
	if c.Data != "" && c.Store != memoryURL {
		return errors.New("--data: requires the memory store (--store memory:)")
	}
	if err := c.readToken(); err != nil {
		return err
	}
	if c.RESPAuth && c.Token == "" {
		return errors.New("--resp-auth: requires --token-file or --token")
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

func (l namedListenConfig) check() error {
	switch {
	case l.Cert == "" && l.Key != "":
		return fmt.Errorf("--%s-tls-key without --%[1]s-tls-cert: want both", l.name)
	case l.Cert != "" && l.Key == "":
		return fmt.Errorf("--%s-tls-cert without --%[1]s-tls-key: want both", l.name)
	case l.ClientCA != "" && l.Cert == "":
		return fmt.Errorf("--%s-tls-client-ca without --%[1]s-tls-cert and --%[1]s-tls-key: client certificates require TLS", l.name)
	}
	return nil
}

func (c *Config) readToken() error {
	if c.TokenFile == "" {
		return nil
	}
	if c.Token != "" {
		return errors.New("--token and --token-file: want one of them")
	}
	text, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	c.Token = strings.TrimSpace(string(text))
	if c.Token == "" {
		return fmt.Errorf("--token-file: %s is empty", c.TokenFile)
	}
	return nil
}

// checkAddr returns an error if the address has no valid form.
func checkAddr(addr string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q: want an address like 127.0.0.1:8080 or :8080, or \"\" to disable the listener", addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q: want a port from 0 to 65535", addr)
	}
	return nil
}
