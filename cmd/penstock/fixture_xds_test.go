package main

import (
	"crypto/tls"
	"crypto/x509"
	"strconv"

	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
	"github.com/rogpeppe/go-internal/testscript"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// An xdsServer serves the rules of a script, each file under the next version.
type xdsServer struct {
	*xdstest.Server
	version int
}

// A ruleFile is what a management server knows of a rule file.
type ruleFile struct {
	Domain      string           `yaml:"domain"`
	Descriptors []ruleDescriptor `yaml:"descriptors"`
}

type ruleDescriptor struct {
	Key         string           `yaml:"key"`
	Value       string           `yaml:"value"`
	Descriptors []ruleDescriptor `yaml:"descriptors"`
	RateLimit   *struct {
		Unit     string `yaml:"unit"`
		Requests uint64 `yaml:"requests_per_unit"`
	} `yaml:"rate_limit"`
}

// serveXDS serves rule files over xDS with mutual TLS, in place of those before.
func serveXDS(ts *testscript.TestScript, neg bool, files []string) {
	d := daemonOf(ts)
	if neg {
		ts.Fatalf("usage: xds FILE...")
	}
	if d.xds == nil {
		server, err := xdstest.Start("127.0.0.1:0", grpc.Creds(xdsCredentials(ts)))
		ts.Check(err)
		ts.Defer(server.Stop)
		d.xds = &xdsServer{Server: server}
		ts.Setenv("XDS", server.Addr())
	}
	var messages [][]byte
	for _, name := range files {
		var f ruleFile
		ts.Check(yaml.Unmarshal([]byte(ts.ReadFile(name)), &f))
		c := xdstest.Config{Name: f.Domain, Domain: f.Domain, Descriptors: xdsDescriptors(f.Descriptors)}
		messages = append(messages, c.Encode())
	}
	d.xds.version++
	d.xds.Set(strconv.Itoa(d.xds.version), messages...)
}

var xdsUnits = map[string]uint64{"second": xdstest.Second, "minute": xdstest.Minute, "hour": xdstest.Hour, "day": xdstest.Day, "year": xdstest.Year}

func xdsDescriptors(from []ruleDescriptor) (all []xdstest.Descriptor) {
	for _, r := range from {
		d := xdstest.Descriptor{Key: r.Key, Value: r.Value, Descriptors: xdsDescriptors(r.Descriptors)}
		if r.RateLimit != nil {
			d.Limit = &xdstest.Limit{Unit: xdsUnits[r.RateLimit.Unit], Requests: r.RateLimit.Requests}
		}
		all = append(all, d)
	}
	return all
}

// xdsCredentials requires clients to have a certificate of the script's authority.
func xdsCredentials(ts *testscript.TestScript) credentials.TransportCredentials {
	makeCertificate(ts, false, []string{"xds"})
	pair, err := tls.LoadX509KeyPair(ts.MkAbs("xds.crt"), ts.MkAbs("xds.key"))
	ts.Check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ts.ReadFile("ca.crt")))
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})
}
