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

// A fakeListener returns connections from given addresses.
type fakeListener struct {
	net.Listener
	from []string
}

func (q *fakeListener) Accept() (net.Conn, error) {
	if len(q.from) == 0 {
		return nil, net.ErrClosed
	}
	addr, err := net.ResolveTCPAddr("tcp", q.from[0])
	q.from = q.from[1:]
	ours, _ := net.Pipe()
	return &fakeConn{ours, addr}, err
}

type fakeConn struct {
	net.Conn
	remote net.Addr
}

func (c *fakeConn) RemoteAddr() net.Addr { return c.remote }

// acceptAll accepts connections from the addresses. It returns the accepted connections and
// the addresses of the refused ones, sorted.
func acceptAll(t *testing.T, o Options, from ...string) (l *Listener, accepted []net.Conn, refused []string) {
	t.Helper()
	refusals := make(chan string, len(from))
	o.Refuse = func(conn net.Conn) { refusals <- conn.RemoteAddr().String() }
	l = New(&fakeListener{from: from}, o)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		accepted = append(accepted, conn)
	}
	for range l.Refused() {
		refused = append(refused, <-refusals)
	}
	slices.Sort(refused)
	return l, accepted, refused
}

func TestListenerLimitsConnectionsPerClient(t *testing.T) {
	for _, c := range []struct {
		name    string
		options Options
		from    []string
		refused []string
	}{
		{
			"default is half of Max",
			Options{Max: 4},
			[]string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.2:4", "10.0.0.2:5", "10.0.0.3:6"},
			[]string{"10.0.0.1:3", "10.0.0.3:6"},
		},
		{
			"explicit limit",
			Options{Max: 9, MaxPerClient: 1},
			[]string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:3", "[::ffff:10.0.0.2]:4"},
			[]string{"10.0.0.1:2", "10.0.0.2:4"},
		},
		{
			"IPv6 addresses count by /64",
			Options{Max: 9, MaxPerClient: 1},
			[]string{"[2001:db8::1]:1", "[2001:db8::2]:2", "[2001:db8:0:1::1]:3"},
			[]string{"[2001:db8::2]:2"},
		},
		{
			"loopback is not limited per client",
			Options{Max: 4, MaxPerClient: 1},
			[]string{"127.0.0.1:1", "127.0.0.1:2", "[::1]:3", "[::1]:4", "127.0.0.1:5"},
			[]string{"127.0.0.1:5"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, accepted, refused := acceptAll(t, c.options, c.from...)
			if !slices.Equal(refused, c.refused) || l.Refused() != int64(len(c.refused)) || l.Active() != len(accepted) {
				t.Errorf("refused %q, Refused() = %d, Active() = %d; want %q refused, %d active", refused, l.Refused(), l.Active(), c.refused, len(accepted))
			}
			for _, conn := range accepted {
				_ = conn.Close()
			}
			if l.Active() != 0 || len(l.perClient) != 0 {
				t.Errorf("all closed: %d active connections and %d addresses left", l.Active(), len(l.perClient))
			}
		})
	}
}

// Refused clients that do not read their error must not stop the accept loop.
func TestListenerRefuseDoesNotBlockAccept(t *testing.T) {
	const extra = 10
	q := &fakeListener{from: slices.Repeat([]string{"10.0.0.1:1"}, 1+maxRefusing+extra)}
	release, refusing := make(chan struct{}), make(chan struct{}, maxRefusing+extra)
	l := New(q, Options{Max: 2, MaxPerClient: 1, Refuse: func(net.Conn) {
		refusing <- struct{}{}
		<-release
	}})
	q.from = append(q.from, "10.0.0.2:2")
	for range 2 {
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	for range maxRefusing {
		<-refusing
	}
	if n := l.Refused(); n != maxRefusing+extra {
		t.Errorf("%d connections refused, want %d", n, maxRefusing+extra)
	}
	select {
	case <-refusing:
		t.Errorf("Refuse runs more than %d times at once", maxRefusing)
	default:
	}
	close(release)
}

func TestListenerCloseOfConnectionFreesItsPlace(t *testing.T) {
	q := &fakeListener{from: []string{"10.0.0.1:1"}}
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
		t.Errorf("%d connections refused, want none", n)
	}
}

// An exhaustedListener fails for lack of file descriptors a few times, and then returns
// one connection.
type exhaustedListener struct {
	net.Listener
	failures int
	conn     net.Conn
	closed   chan struct{}
}

func (l *exhaustedListener) Accept() (net.Conn, error) {
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

func (l *exhaustedListener) Close() error {
	close(l.closed)
	return nil
}

func TestListenerSurvivesFileDescriptorShortage(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	var log bytes.Buffer
	l := New(&exhaustedListener{failures: 3, conn: ours, closed: make(chan struct{})}, Options{
		Max: 1, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n := l.Active(); n != 1 {
		t.Errorf("%d active connections, want 1", n)
	}
	if n := strings.Count(log.String(), "too many open files"); n != 3 {
		t.Errorf("got %d log lines, want 3:\n%s", n, log.String())
	}
	for range 2 { // the second Close must not count again
		_ = conn.Close()
	}
	if n := l.Active(); n != 0 {
		t.Errorf("%d active connections, want 0", n)
	}
}

func TestListenerCloseDuringFileDescriptorShortage(t *testing.T) {
	l := New(&exhaustedListener{failures: 1 << 30, closed: make(chan struct{})}, Options{Max: 1})
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
			t.Errorf("got %v, want net.ErrClosed", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Accept still waits for file descriptors")
	}
}
