package server

import (
	"log/slog"
	"testing"
)

// Every door has the room that the settings say, and Redis clients hear why there is
// none, unless they would have to shake hands first.
func TestEveryDoorHasTheSameRoom(t *testing.T) {
	s := &Server{config: &Config{MaxConnections: 7, MaxConnectionsPerAddress: 3}, log: slog.New(slog.DiscardHandler)}
	for _, door := range []string{"grpc", "http", "resp", "admin"} {
		for _, encrypted := range []bool{false, true} {
			o := s.connLimits(door, encrypted)
			if o.Max != 7 || o.MaxPerClient != 3 || (o.Refuse != nil) != (door == "resp" && !encrypted) {
				t.Errorf("%s, encrypted: %t: %+v", door, encrypted, o)
			}
		}
	}
}
