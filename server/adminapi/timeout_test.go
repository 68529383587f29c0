package adminapi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/engine"
)

// A pipeListener accepts one end of each pipe.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// A caller without the token cannot hold a connection by not reading its response. With enough
// of them it would keep probes and operators out.
func TestServerClosesCallerWithoutTokenThatDoesNotRead(t *testing.T) {
	e := newEngineWithOptions(t, &engine.Options{Token: "secret"})
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, e, adminapi.Options{})
		l := &pipeListener{make(chan net.Conn), make(chan struct{})}
		go func() { _ = s.Serve(l) }()
		caller, server := net.Pipe()
		l.conns <- server
		if _, err := io.WriteString(caller, "GET /openapi.yaml HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n, err := caller.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after a minute: got %d bytes, %v, want a closed connection", n, err)
		}
		_ = caller.Close()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
