package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/penstock-io/penstock/server"
)

// printTries prints a line to try for each door that is open. Where one needs the
// token, the line says where to put it, and not what it is.
func printTries(w io.Writer, s *server.Server, c *server.Config) {
	redisCLI, bearer := "redis-cli", ""
	if c.RESPAuth {
		redisCLI += " --askpass"
	}
	if addr := s.Addr("admin"); addr != nil && !isLoopback(addr) {
		bearer = ` -H "Authorization: Bearer $PENSTOCK_TOKEN"`
	}
	fmt.Fprintln(w, "try, in another terminal:")
	for _, t := range []struct{ door, line string }{
		{"http", `curl %s/v1/take --json '{"key":"user:42","limit":"10/1m"}'`},
		{"resp", redisCLI + " -h HOST -p PORT CL.THROTTLE user:42 15 30 60"},
		{"grpc", os.Args[0] + " take --server %s --domain shop user=42"},
		{"admin", "curl" + bearer + " %s/metrics"},
	} {
		if addr := s.Addr(t.door); addr != nil {
			fmt.Fprintf(w, "  %-6s %s\n", t.door, tryLine(t.door, t.line, addr, s.UsesTLS(t.door)))
		}
	}
}

func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// tryLine puts into a line where the door is.
func tryLine(door, line string, addr net.Addr, encrypted bool) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	if door == "resp" {
		if encrypted {
			line = strings.Replace(line, "redis-cli", "redis-cli --tls", 1)
		}
		return strings.NewReplacer("HOST", host, "PORT", port).Replace(line)
	}
	scheme := map[string]string{"grpc": "grpc"}[door]
	if scheme == "" {
		scheme = "http"
	}
	if encrypted {
		scheme += "s"
	}
	return fmt.Sprintf(line, scheme+"://"+net.JoinHostPort(host, port))
}
