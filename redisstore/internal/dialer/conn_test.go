package dialer

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// pair returns a connection of a dialer after its handshake, and the server's end.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d := New("tcp", time.Minute)
	t.Cleanup(d.Close)
	client, err = d.Dial(context.Background(), l.Addr().String(), &net.Dialer{Timeout: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	exchange(t, client, server)
	return client, server
}

const command = "*1\r\n$4\r\nPING\r\n"

// exchange sends a command and reads its reply, as rueidis does without pipelining.
func exchange(t *testing.T, client, server net.Conn) {
	t.Helper()
	if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		from, to net.Conn
		text     string
	}{{client, server, command}, {server, client, "+PONG\r\n"}} {
		if _, err := io.WriteString(step.from, step.text); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(step.to, make([]byte, len(step.text))); err != nil {
			t.Fatal(err)
		}
	}
}

// closeAndWait closes the server's end, and waits until the client's end knows.
func closeAndWait(t *testing.T, c, server net.Conn) {
	t.Helper()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	waitClosed(t, c)
}

// waitClosed waits until a connection knows that its peer has closed it.
func waitClosed(t *testing.T, c net.Conn) {
	t.Helper()
	redistest.WaitFor(t, "the client's end is closed", func() bool { return errors.Is(c.(*conn).peek(), errPeerClosed) })
	if last := &c.(*conn).lastWrite; last.Load() != 0 {
		last.Store(-int64(time.Minute)) // as if it had been idle for longer than checkAfter
	}
}

func TestConnClosedWhileIdleSendsNothing(t *testing.T) {
	client, server := pair(t)
	exchange(t, client, server)
	closeAndWait(t, client, server)
	if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Write([]byte(command)); n != 0 || !errors.Is(err, ErrNotSent) {
		t.Errorf("Write on a connection that was closed while idle: %d, %v, want 0, %v", n, err, ErrNotSent)
	}
}

// A peer that only stops sending could still execute what it reads.
func TestConnHalfClosedWhileIdleSendsNothing(t *testing.T) {
	client, server := pair(t)
	exchange(t, client, server)
	if err := server.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	waitClosed(t, client)
	if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Write([]byte(command)); n != 0 || !errors.Is(err, ErrNotSent) {
		t.Errorf("Write on a half-closed connection: %d, %v, want 0, %v", n, err, ErrNotSent)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(server); err != nil || len(b) != 0 {
		t.Errorf("the server has read %q, %v, want nothing", b, err)
	}
}

// What waits on an idle connection would be taken for the reply to the next command. A push comes by itself.
func TestConnUnaskedReplyWhileIdleSendsNothing(t *testing.T) {
	for text, want := range map[string]error{">2\r\n+a\r\n+b\r\n": nil, "+OK\r\n": ErrNotSent} {
		client, server := pair(t)
		exchange(t, client, server)
		if _, err := io.WriteString(server, text); err != nil {
			t.Fatal(err)
		}
		redistest.WaitFor(t, "the text arrives", func() bool {
			var first byte
			raw, err := client.(*conn).Conn.(syscall.Conn).SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { _, first = peek(fd) })
			}
			return err == nil && first == text[0]
		})
		client.(*conn).lastWrite.Store(-int64(time.Minute)) // as if it had been idle for longer than checkAfter
		if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(client, command); !errors.Is(err, want) {
			t.Errorf("a command after %q: got %v, want %v", text, err, want)
		}
	}
}

func TestDialerLostWriteSince(t *testing.T) {
	client, server := pair(t)
	d := client.(*conn).dialer
	before := time.Now()
	if d.LostWriteSince(before) {
		t.Error("no connection is closed, but a write is lost")
	}
	exchange(t, client, server)
	after := time.Now()
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if !d.LostWriteSince(before) || d.LostWriteSince(after.Add(1)) {
		t.Errorf("write lost since before and after it: %t and %t, want true and false",
			d.LostWriteSince(before), d.LostWriteSince(after.Add(1)))
	}
}

// Others that are idle look open for as long as no call uses them.
func TestDialerTellsThatServerMayBeReplaced(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d, replaced := New("tcp", time.Minute), 0
	defer d.Close()
	d.OnReplaced = func() { replaced++ }
	dial := func() net.Conn {
		c, err := d.Dial(t.Context(), l.Addr().String(), &net.Dialer{Timeout: time.Minute}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first := dial()
	if dial(); replaced != 0 {
		t.Error("the second connection replaces none")
	}
	if server, err := l.Accept(); err != nil || server.Close() != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Fatal("read something")
	}
	if dial(); replaced != 1 {
		t.Errorf("told %d times, want once: a connection has failed", replaced)
	}
	_ = first.Close()
	if dial(); replaced != 1 {
		t.Errorf("told %d times of the same connection, want once", replaced)
	}
}

// The beginning of a write can hold whole commands, which may have been executed.
func TestConnClosedAfterWriteMayHaveSent(t *testing.T) {
	client, server := pair(t)
	if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte(command)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	closeAndWait(t, client, server)
	_, err := client.Write([]byte(command))
	if err == nil {
		_, err = client.Read(make([]byte, 1))
	}
	if err == nil || errors.Is(err, ErrNotSent) {
		t.Errorf("got %v, want an error that does not claim that nothing was sent", err)
	}
}

// Replies that are read in the background may belong to commands in flight.
func TestConnPipelinedMayHaveSent(t *testing.T) {
	client, server := pair(t)
	if err := client.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	closeAndWait(t, client, server)
	_, err := client.Write([]byte(command))
	if err == nil {
		_, err = client.Read(make([]byte, 1))
	}
	if err == nil || errors.Is(err, ErrNotSent) {
		t.Errorf("got %v, want an error that does not claim that nothing was sent", err)
	}
}

// A server may answer the first command of a handshake and hang before the next one.
func TestConnHalfAnsweredHandshakeEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d := New("tcp", time.Minute)
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	client, err := d.Dial(ctx, l.Addr().String(), &net.Dialer{Timeout: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	exchange(t, client, server)
	hung := time.AfterFunc(time.Minute, func() { _ = client.Close() })
	defer hung.Stop()
	if _, err = client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read of the second reply: %v, want %v", err, os.ErrDeadlineExceeded)
	}
}

func TestConnHandshakeErrorsAreNotSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d := New("tcp", time.Minute)
	defer d.Close()
	client, err := d.Dial(context.Background(), l.Addr().String(), &net.Dialer{Timeout: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	closeAndWait(t, client, server)
	if _, err = client.Read(make([]byte, 1)); !errors.Is(err, ErrNotSent) {
		t.Errorf("Read before the first reply: %v, want %v", err, ErrNotSent)
	}
}

// A caller that leaves ends the handshake that it waits for, whether it leaves before or after that
// has got its deadline. The server counts as responsive.
func TestConnHandshakeEndsWithItsCaller(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d := New("tcp", time.Minute)
	defer d.Close()
	for _, early := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		client, err := d.Dial(ctx, l.Addr().String(), &net.Dialer{Timeout: time.Hour}, nil)
		if err != nil {
			t.Fatal(err)
		}
		hung := time.AfterFunc(time.Minute, func() { _ = client.Close() })
		if early {
			cancel()
		}
		if err := client.SetDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err = client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("left early %v: Read of the first reply: %v, want %v", early, err, os.ErrDeadlineExceeded)
		}
		hung.Stop()
		_ = client.Close()
	}
}
