package respapi

import (
	"net"
	"sync"
	"testing"
)

// A road is a listener on this machine whose clients come from where the test says.
type road struct {
	net.Listener
	from net.Addr // nil for where they really come from
}

// elsewhere is another machine.
var elsewhere = &net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 4711}

func newRoad(t testing.TB) *road {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &road{Listener: l}
}

func (r *road) Accept() (net.Conn, error) {
	nc, err := r.Listener.Accept()
	if err != nil || r.from == nil {
		return nc, err
	}
	return &traveller{nc.(*net.TCPConn), r.from}, nil
}

func (r *road) dial(t testing.TB) *client {
	t.Helper()
	return dial(t, r.Addr().String())
}

type traveller struct {
	*net.TCPConn
	from net.Addr
}

func (t *traveller) RemoteAddr() net.Addr { return t.from }

// A hallway is a listener whose connections are pipes, which work on the clock of a
// synctest bubble.
type hallway struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	from   net.Addr
}

func newHallway() *hallway {
	return &hallway{
		conns: make(chan net.Conn), closed: make(chan struct{}),
		from: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711},
	}
}

func (h *hallway) Accept() (net.Conn, error) {
	select {
	case nc := <-h.conns:
		return nc, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *hallway) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *hallway) Addr() net.Addr { return h.from }

// enter returns the client's end of a new connection.
func (h *hallway) enter() net.Conn {
	ours, theirs := net.Pipe()
	h.conns <- &visitor{theirs, h.from}
	return ours
}

type visitor struct {
	net.Conn
	from net.Addr
}

func (v *visitor) RemoteAddr() net.Addr { return v.from }
