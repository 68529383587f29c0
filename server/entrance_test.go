package server

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// An exhausted listener has no file descriptors for a while, and then one
// connection.
type exhausted struct {
	net.Listener
	failures int
	conn     net.Conn
	closed   chan struct{}
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	if l.conn == nil {
		<-l.closed
		return nil, net.ErrClosed
	}
	conn := l.conn
	l.conn = nil
	return conn, nil
}

func (l *exhausted) Close() error {
	close(l.closed)
	return nil
}

func TestAnEntranceOutlivesAShortageOfFileDescriptors(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	e := newEntrance(&exhausted{failures: 3, conn: ours, closed: make(chan struct{})}, 1)
	conn, err := e.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n := e.inside.Load(); n != 1 {
		t.Errorf("%d are inside, want 1", n)
	}
	for range 2 { // closing twice is one departure
		_ = conn.Close()
	}
	if n := e.inside.Load(); n != 0 {
		t.Errorf("%d are inside, want nobody", n)
	}
}

func TestAnEntranceClosesDuringAShortage(t *testing.T) {
	e := newEntrance(&exhausted{failures: 1 << 30, closed: make(chan struct{})}, 1)
	ended := make(chan error)
	go func() {
		_, err := e.Accept()
		ended <- err
	}()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want that it is closed", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it still waits for file descriptors")
	}
}
