package server

import (
	"log/slog"
	"testing"
)

// Redis clients receive an error reply when refused, except over TLS.
func TestConnLimitsRefuseOnlyPlainRESP(t *testing.T) {
	s := &Server{config: &Config{MaxConnections: 7, MaxConnectionsPerAddress: 3}, log: slog.New(slog.DiscardHandler)}
	for _, name := range []string{"grpc", "http", "resp", "admin"} {
		for _, secure := range []bool{false, true} {
			o := s.connLimits(name, secure)
			if o.Max != 7 || o.MaxPerClient != 3 || (o.Refuse != nil) != (name == "resp" && !secure) {
				t.Errorf("%s, TLS %t: %+v", name, secure, o)
			}
		}
	}
}
