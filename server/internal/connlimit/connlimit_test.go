package connlimit

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A queue is a listener whose connections come from where the test says.
type queue struct {
	net.Listener
	from []string
}

func (q *queue) Accept() (net.Conn, error) {
	if len(q.from) == 0 {
		return nil, net.ErrClosed
	}
	at, err := net.ResolveTCPAddr("tcp", q.from[0])
	q.from = q.from[1:]
	ours, _ := net.Pipe()
	return &visitor{ours, at}, err
}

type visitor struct {
	net.Conn
	from net.Addr
}

func (v *visitor) RemoteAddr() net.Addr { return v.from }

// admit returns who of those that come is let in, and who is refused.
func admit(t *testing.T, o Options, from ...string) (l *Listener, inside []net.Conn, refused []string) {
	t.Helper()
	o.Refuse = func(conn net.Conn) { refused = append(refused, conn.RemoteAddr().String()) }
	l = New(&queue{from: from}, o)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return l, inside, refused
		}
		if err != nil {
			t.Fatal(err)
		}
		inside = append(inside, conn)
	}
}

// Who takes all connections from one address leaves half of them to the others.
func TestOneAddressLeavesRoomForOthers(t *testing.T) {
	for _, c := range []struct {
		name    string
		options Options
		from    []string
		refused []string
	}{
		{
			"half of all, unless it is said",
			Options{Max: 4},
			[]string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.2:4", "10.0.0.2:5", "10.0.0.3:6"},
			[]string{"10.0.0.1:3", "10.0.0.3:6"},
		},
		{
			"as many as it is said",
			Options{Max: 9, MaxPerClient: 1},
			[]string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:3", "[::ffff:10.0.0.2]:4"},
			[]string{"10.0.0.1:2", "10.0.0.2:4"},
		},
		{
			"who has one network of IPv6 has all its addresses",
			Options{Max: 9, MaxPerClient: 1},
			[]string{"[2001:db8::1]:1", "[2001:db8::2]:2", "[2001:db8:0:1::1]:3"},
			[]string{"[2001:db8::2]:2"},
		},
		{
			"a proxy on this machine speaks for everybody",
			Options{Max: 4, MaxPerClient: 1},
			[]string{"127.0.0.1:1", "127.0.0.1:2", "[::1]:3", "[::1]:4", "127.0.0.1:5"},
			[]string{"127.0.0.1:5"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, inside, refused := admit(t, c.options, c.from...)
			if !slices.Equal(refused, c.refused) || l.Refused() != int64(len(c.refused)) || l.Active() != len(inside) {
				t.Errorf("refused %q, and counts %d and %d inside; want %q", refused, l.Refused(), l.Active(), c.refused)
			}
			for _, conn := range inside {
				_ = conn.Close()
			}
			if l.Active() != 0 || len(l.perClient) != 0 {
				t.Errorf("%d are inside, and %d addresses remembered, when all have gone", l.Active(), len(l.perClient))
			}
		})
	}
}

// Whoever leaves makes room for another from the same address.
func TestRoomIsMadeByWhoLeaves(t *testing.T) {
	q := &queue{from: []string{"10.0.0.1:1"}}
	l := New(q, Options{Max: 9, MaxPerClient: 1})
	for range 3 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		q.from = []string{"10.0.0.1:2"}
	}
	if n := l.Refused(); n != 0 {
		t.Errorf("%d were refused", n)
	}
}

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
	var log bytes.Buffer
	l := New(&exhausted{failures: 3, conn: ours, closed: make(chan struct{})}, Options{
		Max: 1, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n := l.Active(); n != 1 {
		t.Errorf("%d are inside, want 1", n)
	}
	if n := strings.Count(log.String(), "too many open files"); n != 3 {
		t.Errorf("the operator was told %d times of 3:\n%s", n, log.String())
	}
	for range 2 { // closing twice is one departure
		_ = conn.Close()
	}
	if n := l.Active(); n != 0 {
		t.Errorf("%d are inside, want nobody", n)
	}
}

func TestAnEntranceClosesDuringAShortage(t *testing.T) {
	l := New(&exhausted{failures: 1 << 30, closed: make(chan struct{})}, Options{Max: 1})
	ended := make(chan error)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	if err := l.Close(); err != nil {
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
