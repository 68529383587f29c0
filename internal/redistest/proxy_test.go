package redistest

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// CutAll also cuts a connection that is being opened.
func TestProxyCutsConnectionInProgress(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	p := StartProxy(t, server.Addr().String())
	client, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	WaitFor(t, "the connection is cut", func() bool {
		p.CutAll()
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.dials == 1 && len(p.links) == 0
	})
	if err := client.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading from the connection: %v, want it cut", err)
	}
}
