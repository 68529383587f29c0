//go:build unix

package respapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/server/internal/connlimit"
)

// A piece is a part of what a client sends, and the number of commands that are complete with it.
type piece struct {
	text    string
	replies int
}

// An idle connection is open during a shutdown until its next commands are answered. The linger time
// of an hour does not end it.
func TestShutdownAnswersNextCommandsOfIdleConnection(t *testing.T) {
	t.Parallel()
	take := encode("CL.THROTTLE", "k", "99999", "1", "3600")
	for name, pieces := range map[string][]piece{
		"a command":            {{take, 1}},
		"a pipeline":           {{strings.Repeat(take, 1000), 1000}},
		"a pipeline, divided":  {{take + take[:20], 1}, {take[20:] + take, 2}},
		"a byte, and the rest": {{take[:1], 0}, {take[1:], 1}},
		"DEL":                  {{encode("DEL", "k"), 1}},
		"a check before":       {{encode("PING"), 1}, {take, 1}},
		"a new session before": {{encode("RESET"), 1}, {encode("HELLO", "2"), 1}, {encode("CLIENT", "SETNAME", "c"), 1}, {take, 1}},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %t", name, secure), func(t *testing.T) {
				t.Parallel()
				s, dial := serveLingering(t, secure, nil)
				c := dial()
				c.want("+PONG", "PING")
				done := beginShutdown(t, s)
				for _, p := range pieces {
					c.send(p.text)
					for range p.replies {
						if reply := c.read(); reply == "closed" || reply[0] == '-' {
							t.Fatalf("%.80q: got %s, want a reply", p.text, reply)
						}
					}
				}
				if reply := c.read(); reply != "closed" {
					t.Errorf("after the last reply: got %s, want closed", reply)
				}
				_ = c.conn.Close()
				if err := <-done; err != nil {
					t.Errorf("Shutdown: %v", err)
				}
			})
		}
	}
}

// beginShutdown returns when the reads of all connections have been interrupted.
func beginShutdown(t *testing.T, s *Server) (done chan error) {
	t.Helper()
	done = make(chan error, 1)
	go func() { done <- s.Shutdown(t.Context()) }()
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			if !c.interrupted {
				return false
			}
		}
		return true
	})
	return done
}

// serveLingering serves until the test ends, and lingers for an hour when it shuts down. The connections
// of the server go through wrap, if that is not nil.
func serveLingering(t *testing.T, secure bool, wrap func(*net.TCPConn) net.Conn) (s *Server, dial func() *client) {
	t.Helper()
	s = newServer(t, newFakeClock().memory(), nil, nil, nil)
	s.closeWaits.finalRead, s.lingerTime = 0, func(context.Context) time.Duration { return time.Hour }
	tcp := &wrappingListener{newTestListener(t).Listener, wrap}
	var l net.Listener = tcp
	if secure {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{newCertificate(t)}})
	}
	serve(t, s, l)
	return s, func() *client {
		nc := must(net.Dial("tcp", tcp.Addr().String()))
		if secure {
			nc = tls.Client(nc, &tls.Config{InsecureSkipVerify: true})
		}
		return newClient(t, nc)
	}
}

// A wrappingListener wraps the connections that it accepts.
type wrappingListener struct {
	net.Listener
	wrap func(*net.TCPConn) net.Conn
}

func (l *wrappingListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil || l.wrap == nil {
		return nc, err
	}
	return l.wrap(nc.(*net.TCPConn)), nil
}

// In a synctest bubble the times are exact.
func TestShutdownWithoutNextCommandIsBounded(t *testing.T) {
	const linger = 250 * time.Millisecond // of a context without an end
	rest := linger + defaultCloseWaits.firstRead
	drip := func(text string) func(nc net.Conn) {
		return func(nc net.Conn) {
			for {
				for _, b := range []byte(text) {
					time.Sleep(10 * time.Millisecond)
					if _, err := nc.Write([]byte{b}); err != nil {
						return
					}
				}
			}
		}
	}
	for name, test := range map[string]struct {
		client      func(nc net.Conn) // beside one that reads
		least, most time.Duration
		replies     string // the last of them
	}{
		"silent":                 {func(net.Conn) {}, linger, linger, "+PONG\r\n"},
		"half a command":         {func(nc net.Conn) { write(nc, "PI") }, commandTimeout, rest, "+PONG\r\n"},
		"half a command at last": {func(nc net.Conn) { time.Sleep(linger - 1); write(nc, "PI") }, commandTimeout, rest + time.Second, "+PONG\r\n"},
		"the rest of it after four seconds": {func(nc net.Conn) {
			write(nc, `ECHO "ho`)
			time.Sleep(4 * time.Second)
			write(nc, "t\"\r\n")
		}, 4 * time.Second, 4*time.Second + defaultCloseWaits.finalRead, "hot\r\n"},
		"slow commands":       {drip(encode("PING")), linger, rest, "+PONG\r\n"},
		"slow takes":          {drip(encode("CL.THROTTLE", "k", "1", "1", "1")), linger, rest, ":1\r\n"},
		"checks all the time": {drip("PING\r\n"), linger, rest, "+PONG\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipeListener()
				s := newServer(t, newFakeClock().memory(), nil, nil, nil)
				serve(t, s, l)
				nc := l.dial()
				write(nc, encode("PING"))
				if _, err := io.ReadFull(nc, make([]byte, 7)); err != nil {
					t.Fatal(err)
				}
				write(nc, encode("PING"))
				start := time.Now()
				var working sync.WaitGroup
				working.Go(func() { test.client(nc) })
				working.Go(func() { _ = s.Shutdown(t.Context()) })
				replies, _ := io.ReadAll(nc)
				if took := time.Since(start); took < test.least || took > test.most {
					t.Errorf("closed after %v, want %v to %v", took, test.least, test.most)
				}
				working.Wait()
				if !strings.HasSuffix(string(replies), test.replies) {
					t.Errorf("got %q, want %q at last", replies, test.replies)
				}
			})
		})
	}
}

// A client that does not read its replies is not waited for longer than at other times, and not beyond
// the end of the context.
func TestShutdownDoesNotWaitForClientThatDoesNotRead(t *testing.T) {
	for _, grace := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			l := newPipeListener()
			s := newServer(t, newFakeClock().memory(), nil, nil, nil)
			serve(t, s, l)
			nc := l.dial()
			defer func() { _ = nc.Close() }()
			go write(nc, encode("PING")) // its reply is not read
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), grace)
			defer cancel()
			start := time.Now()
			err := s.Shutdown(ctx)
			if took, most := time.Since(start), min(grace, writeTimeout*3/2); took > most || (err == nil) != (grace > most) {
				t.Errorf("grace %v: Shutdown took %v, %v, want at most %v", grace, took, err, most)
			}
		})
	}
}

// Clients check whether a connection has ended before they use it again, so the end must not come later
// than the reply.
func TestShutdownSendsEndWithLastReply(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("the operating system cannot hold back what is written")
		return
	}
	t.Parallel()
	for _, secure := range []bool{false, true} {
		// The kernel holds a reply back for 200 ms, which one connection of many passes on any machine.
		heldBack := 0
		for range 10 {
			closing, looked := make(chan struct{}), make(chan struct{})
			s, dial := serveLingering(t, secure, func(nc *net.TCPConn) net.Conn { return &closingConn{nc, closing, looked} })
			c := dial()
			c.want("+PONG", "PING")
			done := beginShutdown(t, s)
			if endsWithReply(t, c, closing, looked) {
				heldBack++
			}
			_ = c.conn.Close()
			if err := <-done; err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		}
		if heldBack == 0 {
			t.Errorf("TLS %t: the reply was sent before the end of the connection", secure)
		}
	}
}

// endsWithReply sends commands until the server ends the connection, and reports whether it held the last reply back until then. A
// command that arrives just before the shutdown is answered as usual.
func endsWithReply(t *testing.T, c *client, closing, looked chan struct{}) (heldBack bool) {
	t.Helper()
	isClosing := func() bool {
		select {
		case <-closing:
			return true
		default:
			return false
		}
	}
	for i := 0; ; i++ {
		c.send(encode("CL.THROTTLE", fmt.Sprint("k", i), "99", "1", "3600"))
		waitFor(t, func() bool { return isClosing() || connlimit.HasUnread(c.conn) })
		ends := isClosing()
		if ends {
			heldBack = !connlimit.HasUnread(c.conn)
			close(looked)
		}
		switch got := c.read(); {
		case i > 0 && got == "closed": // with the reply before, which came 200 ms earlier than the end
			return false
		case got != "*5 :0 :100 :99 :-1 :3600":
			t.Fatalf("got %s, want a decision", got)
		case ends:
			if got := c.read(); got != "closed" {
				t.Fatalf("got %s, want the end of the connection", got)
			}
			return heldBack
		}
	}
}

// A closingConn waits before it sends the end of the connection.
type closingConn struct {
	*net.TCPConn
	closing, looked chan struct{}
}

func (c *closingConn) CloseWrite() error {
	close(c.closing)
	<-c.looked
	return c.TCPConn.CloseWrite()
}
