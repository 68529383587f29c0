package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/penstock-io/penstock/server"
)

// printExamples prints an example command for each listener, and the address of the
// page. If a command needs the token, it contains a placeholder and not the token itself.
func printExamples(w io.Writer, s *server.Server, c *server.Config) {
	redisCLI, bearer := "redis-cli", ""
	if c.RESPAuth {
		redisCLI += " --askpass"
	}
	if c.HasToken() {
		bearer = ` -H "Authorization: Bearer $PENSTOCK_TOKEN"`
	}
	fmt.Fprintln(w, "example commands:")
	for _, t := range []struct{ listener, command string }{
		{"http", `curl %s/v1/take -H 'Content-Type: application/json' -d '{"key":"user:42","limit":"10/1m"}'`},
		{"resp", redisCLI + " -h HOST -p PORT CL.THROTTLE user:42 15 30 60"},
		{"grpc", os.Args[0] + " take --server %s --domain shop user=42"},
		{"admin", "curl" + bearer + " %s/metrics"},
	} {
		if addr := s.Addr(t.listener); addr != nil {
			fmt.Fprintf(w, "  %-6s %s\n", t.listener, exampleCommand(t.listener, t.command, addr, s.UsesTLS(t.listener)))
		}
	}
	if addr := s.Addr("admin"); addr != nil {
		fmt.Fprintln(w, "page:", exampleCommand("admin", "%s/", addr, s.UsesTLS("admin")))
	}
	fmt.Fprintln(w, "reference: docs/http.md, docs/rules.md; the HTTP API is described at /openapi.yaml")
}

// exampleCommand inserts the address of the listener into a command.
func exampleCommand(listener, command string, addr net.Addr, usesTLS bool) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	if listener == "resp" {
		if usesTLS {
			command = strings.Replace(command, "redis-cli", "redis-cli --tls", 1)
		}
		return strings.NewReplacer("HOST", host, "PORT", port).Replace(command)
	}
	scheme := "http"
	if listener == "grpc" {
		scheme = "grpc"
	}
	if usesTLS {
		scheme += "s"
	}
	return fmt.Sprintf(command, scheme+"://"+net.JoinHostPort(host, port))
}
