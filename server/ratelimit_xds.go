package server

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/server/envoy/xds"
)

// configTypeXDS is the CONFIG_TYPE by which rules come over xDS.
const configTypeXDS = "GRPC_XDS_SOTW"

const (
	reasonXDSBackoff = "the client backs off by itself, from half a second to 30 s, with jitter"
	reasonXDSSize    = "responses may have 64 MiB"
)

// xdsVariables are those about rules over xDS.
func xdsVariables() (all []ratelimitVariable) {
	for _, name := range []string{
		"NODE_ID", "NODE_METADATA", "SERVER_URL", "CLIENT_ADDITIONAL_HEADERS",
		"CLIENT_TLS_CERT", "CLIENT_TLS_KEY", "SERVER_TLS_CACERT", "SERVER_TLS_SAN",
	} {
		all = append(all, ratelimitVariable{name: "CONFIG_GRPC_XDS_" + name, set: onlyXDS(combined)})
	}
	all = append(all, ratelimitVariable{name: "CONFIG_GRPC_XDS_SERVER_USE_TLS", set: onlyXDS(combinedFlag)})
	for _, name := range []string{
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "XDS_CLIENT_BACKOFF_JITTER",
	} {
		all = append(all, ratelimitVariable{name: name, set: onlyXDS(noted(reasonXDSBackoff))})
	}
	return append(all, ratelimitVariable{name: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", set: onlyXDS(noted(reasonXDSSize))})
}

// onlyXDS notes that a variable has no effect while rules come from files.
func onlyXDS(set func(*ratelimitEnv, string, string) error) func(*ratelimitEnv, string, string) error {
	return func(e *ratelimitEnv, name, value string) error {
		if !e.usesXDS() {
			return noted(reasonXDS)(e, name, value)
		}
		return set(e, name, value)
	}
}

// noted is for variables without effect, for a reason.
func noted(reason string) func(*ratelimitEnv, string, string) error {
	return func(e *ratelimitEnv, name, _ string) error {
		e.role.Notes = append(e.role.Notes, name+" has no effect: "+reason)
		return nil
	}
}

func (e *ratelimitEnv) usesXDS() bool { return e.get("CONFIG_TYPE", "FILE") == configTypeXDS }

// combineXDS sets where rules come from over xDS.
func (e *ratelimitEnv) combineXDS() error {
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
