package respapi

import (
	"net"
	"sync"
	"testing"
)

// A testListener is a listener on this machine whose clients come from where the test says.
type testListener struct {
	net.Listener
	from net.Addr // nil for where they really come from
}

// remoteAddr is another machine.
var remoteAddr = &net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 4711}

func newTestListener(t testing.TB) *testListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &testListener{Listener: l}
}

func (r *testListener) Accept() (net.Conn, error) {
	nc, err := r.Listener.Accept()
	if err != nil || r.from == nil {
		return nc, err
	}
	return &testConn{nc.(*net.TCPConn), r.from}, nil
}

func (r *testListener) dial(t testing.TB) *client {
	t.Helper()
	return dial(t, r.Addr().String())
}

type testConn struct {
	*net.TCPConn
	from net.Addr
}

func (t *testConn) RemoteAddr() net.Addr { return t.from }

// A pipeListener is a listener whose connections are pipes, which work on the clock of a
// synctest bubble.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	from   net.Addr
}

func newPipeListener() *pipeListener {
	return &pipeListener{
		conns: make(chan net.Conn), closed: make(chan struct{}),
		from: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711},
	}
}

func (h *pipeListener) Accept() (net.Conn, error) {
	select {
	case nc := <-h.conns:
		return nc, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *pipeListener) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *pipeListener) Addr() net.Addr { return h.from }

// dial returns the client's end of a new connection.
func (h *pipeListener) dial() net.Conn {
	ours, theirs := net.Pipe()
	h.conns <- &pipeConn{theirs, h.from}
	return ours
}

type pipeConn struct {
	net.Conn
	from net.Addr
}

func (v *pipeConn) RemoteAddr() net.Addr { return v.from }
