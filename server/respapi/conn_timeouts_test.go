package respapi

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// In a synctest bubble timeouts take no real time, and are exact but for the reaper's tick.
func TestConnTimeoutsCloseStalledConnections(t *testing.T) {
	cases := map[string]struct {
		want   time.Duration // at least, and at most half as long again
		client func(nc net.Conn)
	}{
		"no command": {
			want: idleTimeout, client: func(net.Conn) {},
		},
		"idle after a command": {
			want: idleTimeout, client: func(nc net.Conn) { write(nc, encode("PING")) },
		},
		"incomplete command": {
			want: commandTimeout, client: func(nc net.Conn) { write(nc, encode("PING")+"*2\r\n$4\r\nEC") },
		},
		"incomplete inline command": {
			want: commandTimeout, client: func(nc net.Conn) { write(nc, "PI") },
		},
		"one byte a second": {
			want: commandTimeout, client: func(nc net.Conn) {
				for range 100 {
					time.Sleep(time.Second)
					if _, err := nc.Write([]byte("a")); err != nil {
						return
					}
				}
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipeListener()
				serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), l)
				nc := l.dial()
				var client sync.WaitGroup
				client.Go(func() { c.client(nc) })
				start := time.Now()
				_, _ = io.Copy(io.Discard, nc)
				took := time.Since(start)
				client.Wait()
				if took < c.want || took > c.want*3/2 {
					t.Errorf("closed after %v, want %v", took, c.want)
				}
			})
		})
	}
}

// Hundreds of clients that send a byte a second are closed, and do not delay others.
func TestConnSlowlorisIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
		serve(t, s, l)
		good := newClient(t, l.dial())
		var all sync.WaitGroup
		for range 500 {
			nc := l.dial()
			all.Go(func() {
				for _, b := range []byte(encode("ECHO", strings.Repeat("x", 1000))) {
					if _, err := nc.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
				t.Error("a slow command was not interrupted")
			})
		}
		for range 5 {
			start := time.Now()
			good.want("+PONG", "PING")
			if took := time.Since(start); took > 0 {
				t.Errorf("PING took %v", took)
			}
			time.Sleep(time.Second)
		}
		all.Wait()
		synctest.Wait()
		waitForConns(t, s, 1)
		good.want("+PONG", "PING")
	})
}

// A client that does not read its replies is not read from, and then closed.
func TestConnSlowReaderIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), l)
		nc := l.dial()
		start, sent := time.Now(), 0
		for {
			n, err := io.WriteString(nc, encode("ECHO", strings.Repeat("x", 1000)))
			if sent += n; err != nil {
				break
			}
		}
		if took := time.Since(start); took < writeTimeout || took > writeTimeout*3/2 {
			t.Errorf("closed after %v, want %v", took, writeTimeout)
		}
		if sent > 2*minReadBuffer {
			t.Errorf("the server read %d bytes before the client read its first reply", sent)
		}
	})
}

// A client that stays just within every timeout is not closed.
func TestConnSlowButActiveClientStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), l)
		nc := l.dial()
		defer func() { _ = nc.Close() }()
		for range 10 {
			time.Sleep(idleTimeout * 3 / 4)
			write(nc, "PI")
			time.Sleep(commandTimeout * 3 / 4)
			write(nc, "NG\r\n")
			time.Sleep(writeTimeout * 3 / 4)
			reply := make([]byte, 7)
			if _, err := io.ReadFull(nc, reply); err != nil || string(reply) != "+PONG\r\n" {
				t.Fatalf("got %q, %v", reply, err)
			}
		}
	})
}

// Nor is one that has read all replies to a pipeline so far, while the store takes its time for the next.
func TestConnThatWaitsForTheStoreStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
			time.Sleep(2 * writeTimeout)
			return penstock.Decision{Allowed: true, Limit: 1}, nil
		})
		l := newPipeListener()
		serve(t, newServer(t, slow, nil, nil, nil), l)
		c := newClient(t, l.dial())
		long := strings.Repeat("x", sendThreshold)
		go c.send(encode("ECHO", long) + encode("CL.THROTTLE", "k", "0", "1", "1"))
		if got := c.read(); got != strconv.Quote(long) {
			t.Fatalf("got %.20s, want the text that was sent", got)
		}
		if got, want := c.read(), "*5 :0 :1 :0 :-1 :0"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// Neither is a client that is active, but idle whenever the reaper looks.
func TestConnActiveBetweenTicksStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), l)
		nc := l.dial()
		defer func() { _ = nc.Close() }()
		reply := make([]byte, 7)
		for start := time.Now(); time.Since(start) < 3*idleTimeout; time.Sleep(10 * time.Second) {
			write(nc, encode("PING"))
			if _, err := io.ReadFull(nc, reply); err != nil {
				t.Fatalf("closed after %v: %v", time.Since(start), err)
			}
		}
	})
}

// A shutdown waits for the first command of a client that has just connected, as one does that
// finishes a TLS handshake, and not for one that has been silent for long.
func TestShutdownWaitsForFirstCommandOfNewClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
		serve(t, s, l)
		silent := l.dial()
		defer func() { _ = silent.Close() }()
		time.Sleep(time.Minute)
		fresh := newClient(t, l.dial())
		start, ended := time.Now(), make(chan time.Duration, 1)
		go func() {
			_ = s.Shutdown(t.Context())
			ended <- time.Since(start)
		}()
		if n, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || time.Since(start) > 250*time.Millisecond {
			t.Errorf("the silent client got %d bytes, %v after %v, want EOF at the end of the linger time", n, err, time.Since(start))
		}
		time.Sleep(4 * time.Second)
		fresh.want("+PONG", "PING")
		if took := <-ended; took > 5*time.Second {
			t.Errorf("the shutdown took %v", took)
		}
	})
}
