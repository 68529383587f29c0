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

// Config is everything that can be set about a server. [LoadConfig] makes one; what
// each field means, and its default, is in the table of [Settings].
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

	Profiles                 bool
	MaxConnections           int
	MaxConnectionsPerAddress int // 0 for half of them
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

// A ListenConfig says where a door listens, and with which certificates.
type ListenConfig struct {
	Addr     string // "" keeps the door shut
	Cert     string // files in PEM; without one the door speaks in clear text
	Key      string
	ClientCA string // then clients must show a certificate that one of these has signed
}

// LoadConfig returns the configuration that flags, the environment and the file make:
// a flag wins over a variable, a variable over the file, and the file over the
// default. Flags are by the name of their setting. The environment has the form
// of [os.Environ]. The error names where the culprit was set.
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

// load sets the one field from the first place that says something about it.
func (s *Setting) load(c *Config, flags, env map[string]string, file map[string]fileValue) error {
	if s.set == nil {
		return nil // the path of the file itself, which has been followed
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

// settingsFromEnv returns what the environment sets, by the settings' names.
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

// serviceLink is what Kubernetes calls the variables with which it tells every
// container of a service, and so of one called penstock, or penstock-grpc.
var serviceLink = regexp.MustCompile(`^PENSTOCK(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

func isServiceLink(name, text string) bool {
	return serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}

// check returns an error if settings contradict each other, and reads the token.
func (c *Config) check() error {
	open := 0
	for _, d := range c.listenConfigs() {
		if err := d.check(); err != nil {
			return err
		}
		if d.Addr != "" {
			open++
		}
	}
	if open == 0 {
		return errors.New("no door is open: give at least one of --grpc, --http, --resp and --admin an address")
	}
	if c.Data != "" && c.Store != memoryURL {
		return errors.New("--data: is for counts in memory, and --store says that they are in Redis")
	}
	if err := c.readToken(); err != nil {
		return err
	}
	if c.RESPAuth && c.Token == "" {
		return errors.New("--resp-auth: want a --token-file to authenticate with")
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
		return fmt.Errorf("--%s-tls-client-ca without --%[1]s-tls-cert and --%[1]s-tls-key: clients are known by TLS only", l.name)
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

// checkAddr returns an error if nothing can listen on an address.
func checkAddr(addr string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q: want an address like 127.0.0.1:8080 or :8080, or \"\" to keep the door shut", addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q: want a port from 0 to 65535", addr)
	}
	return nil
}
