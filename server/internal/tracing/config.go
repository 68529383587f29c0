package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Config says where spans go. [ReadEnvironment] makes one.
type Config struct {
	endpoint *url.URL
	grpc     bool
	gzip     bool // over HTTP
	headers  map[string]string
	timeout  time.Duration
	tls      *tls.Config
	resource map[string]string

	maxQueue, maxBatch int
	delay              time.Duration
}

// ReadEnvironment reads the OTEL_ variables of an environment, in the form of [os.Environ]. Without an endpoint, or where
// they turn traces off, the result is nil. Their values are left out of errors: headers and URLs may be secret.
func ReadEnvironment(environ []string) (*Config, error) {
	e := environment{}
	for _, pair := range environ {
		if name, text, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			e[name] = strings.TrimSpace(text)
		}
	}
	if _, text := e.exporter("ENDPOINT"); text == "" || strings.EqualFold(e["OTEL_SDK_DISABLED"], "true") || e["OTEL_TRACES_EXPORTER"] == "none" {
		return nil, nil
	}
	if text := e["OTEL_TRACES_EXPORTER"]; text != "" && text != "otlp" {
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER=%q: want otlp or none", text)
	}
	return e.config()
}

// An environment has the OTEL_ variables.
type environment map[string]string

// exporter returns a variable of the exporter, that of traces before that of all signals.
func (e environment) exporter(name string) (variable, text string) {
	if text = e["OTEL_EXPORTER_OTLP_TRACES_"+name]; text != "" {
		return "OTEL_EXPORTER_OTLP_TRACES_" + name, text
	}
	return "OTEL_EXPORTER_OTLP_" + name, e["OTEL_EXPORTER_OTLP_"+name]
}

func (e environment) config() (*Config, error) {
	c := &Config{}
	for _, read := range []func(*Config) error{e.readProtocol, e.readEndpoint, e.readHeaders, e.readNumbers, e.readTLS, e.readResource} {
		if err := read(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (e environment) readProtocol(c *Config) error {
	switch variable, text := e.exporter("PROTOCOL"); text {
	case "", "http/protobuf":
	case "grpc":
		c.grpc = true
	default:
		return fmt.Errorf("%s=%q: want http/protobuf or grpc", variable, text)
	}
	_, compression := e.exporter("COMPRESSION")
	c.gzip = compression == "gzip"
	return nil
}

func (e environment) readEndpoint(c *Config) (err error) {
	variable, text := e.exporter("ENDPOINT")
	if _, insecure := e.exporter("INSECURE"); c.grpc && !strings.Contains(text, "://") {
		scheme := map[bool]string{true: "http://", false: "https://"}
		text = scheme[strings.EqualFold(insecure, "true")] + text
	}
	c.endpoint, err = url.Parse(text)
	if err != nil || c.endpoint.Host == "" || c.endpoint.Scheme != "http" && c.endpoint.Scheme != "https" {
		return fmt.Errorf("%s: want a URL like http://collector:4318", variable)
	}
	if variable == "OTEL_EXPORTER_OTLP_ENDPOINT" && !c.grpc {
		c.endpoint = c.endpoint.JoinPath("v1/traces")
	}
	return nil
}

func (e environment) readHeaders(c *Config) (err error) {
	variable, text := e.exporter("HEADERS")
	if c.headers, err = parsePairs(text); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	return nil
}

// parsePairs parses names and values with commas between them, whose values are escaped as in a URL.
func parsePairs(text string) (map[string]string, error) {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if pair == "" {
			continue
		}
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.ToLower(strings.TrimSpace(name)); !ok || name == "" || err != nil || strings.ContainsAny(name+value, "\r\n\x00") {
			return nil, fmt.Errorf("want name=value, with commas between them")
		}
		pairs[name] = value
	}
	return pairs, nil
}

func (e environment) readNumbers(c *Config) error {
	var timeout, delay int
	name, _ := e.exporter("TIMEOUT")
	for _, n := range []struct {
		variable  string
		otherwise int
		to        *int
	}{
		{name, 10_000, &timeout},
		{"OTEL_BSP_SCHEDULE_DELAY", 5000, &delay},
		{"OTEL_BSP_MAX_QUEUE_SIZE", 2048, &c.maxQueue},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, &c.maxBatch},
	} {
		const most = 1 << 20
		*n.to = n.otherwise
		if text := e[n.variable]; text != "" {
			value, err := strconv.Atoi(text)
			if err != nil || value < 1 || value > most {
				return fmt.Errorf("%s=%q: want a number from 1 to %d", n.variable, text, most)
			}
			*n.to = value
		}
	}
	c.timeout, c.delay = time.Duration(timeout)*time.Millisecond, time.Duration(delay)*time.Millisecond
	return nil
}

func (e environment) readTLS(c *Config) error {
	c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if variable, path := e.exporter("CERTIFICATE"); path != "" {
		pem, err := os.ReadFile(path)
		c.tls.RootCAs = x509.NewCertPool()
		if err != nil || !c.tls.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s: no certificates in %q", variable, path)
		}
	}
	variable, cert := e.exporter("CLIENT_CERTIFICATE")
	if _, key := e.exporter("CLIENT_KEY"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
		c.tls.Certificates = []tls.Certificate{pair}
	}
	return nil
}

func (e environment) readResource(c *Config) (err error) {
	if c.resource, err = parsePairs(e["OTEL_RESOURCE_ATTRIBUTES"]); err != nil {
		return fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if name := e["OTEL_SERVICE_NAME"]; name != "" {
		c.resource["service.name"] = name
	}
	return nil
}
