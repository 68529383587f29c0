package respapi

import (
	"net"
	"sync"
	"testing"
)

// A testListener is a TCP listener whose connections appear to come from an address.
type testListener struct {
	net.Listener
	from net.Addr // nil for the real address
}

// remoteAddr is the address of another machine.
var remoteAddr = &net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 4711}

func newTestListener(t testing.TB) *testListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &testListener{Listener: l}
}

func (l *testListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil || l.from == nil {
		return nc, err
	}
	return &testConn{nc.(*net.TCPConn), l.from}, nil
}

func (l *testListener) dial(t testing.TB) *client {
	t.Helper()
	return dial(t, l.Addr().String())
}

type testConn struct {
	*net.TCPConn
	from net.Addr
}

func (c *testConn) RemoteAddr() net.Addr { return c.from }

// A pipeListener is a listener whose connections are pipes, which work in a synctest
// bubble.
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

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return l.from }

// dial returns the client's end of a new connection.
func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- &pipeConn{server, l.from}
	return client
}

type pipeConn struct {
	net.Conn
	from net.Addr
}

func (c *pipeConn) RemoteAddr() net.Addr { return c.from }

// A failingListener returns errors before it accepts.
type failingListener struct {
	*testListener
	errors []error
}

func (l *failingListener) Accept() (net.Conn, error) {
	if len(l.errors) > 0 {
		err := l.errors[0]
		l.errors = l.errors[1:]
		return nil, err
	}
	return l.testListener.Accept()
}

// A queueListener returns the connections in its queue after Close, as a listener does
// that drains its accept queue.
type queueListener struct {
	*testListener
	queue  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *queueListener) Accept() (net.Conn, error) {
	<-l.closed
	select {
	case nc := <-l.queue:
		return nc, nil
	default:
		return nil, net.ErrClosed
	}
}

func (l *queueListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.testListener.Close()
}
