package respapi

import (
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/connlimit"
)

// Whatever is said to the door, it keeps nothing of it, and everybody else is served.
func TestConnHostileInputLeavesHeapFlat(t *testing.T) {
	d := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	addr := startServer(t, d)
	good := dial(t, addr)
	attacks := []string{
		"*2147483648\r\n", "*64\r\n$1000000000\r\n", "*2\r\n$4\r\nECHO\r\n$9999999\r\n",
		"*1\r\n$-5\r\n", strings.Repeat("*1\r\n", 1000), strings.Repeat("a", 1<<20), "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"POST / HTTP/1.1\r\nHost: a\r\n\r\n", "*2\r\n$4\r\nPING\r\n$4\r\nPINGxx" + strings.Repeat("x", 1<<16),
		encode("CL.THROTTLE", strings.Repeat("k", maxKey+1), "15", "30", "60"),
		encode("ECHO", strings.Repeat("x", 10<<20)),
	}
	attack := func() {
		var all sync.WaitGroup
		for _, text := range attacks {
			all.Go(func() { sendAndDrain(t, addr, text) })
		}
		all.Wait()
	}
	attack()
	before := heapBytes()
	for range 30 {
		attack()
		if got := good.do("PING"); got != "+PONG" {
			t.Fatalf("meanwhile PING is answered with %s", got)
		}
	}
	waitForConns(t, d, 1)
	if grown := int64(heapBytes()) - int64(before); grown > 4<<20 {
		t.Errorf("%d attacks left %d bytes behind", 30*len(attacks), grown)
	}
}

// sendAndDrain says something and listens until the door closes the connection, or has
// nothing more to say.
func sendAndDrain(t *testing.T, addr, text string) {
	nc, err := net.DialTimeout("tcp", addr, testTimeout)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = nc.Close() }()
	_ = nc.SetDeadline(time.Now().Add(testTimeout))
	_, _ = io.WriteString(nc, text) // the door may have closed already
	_ = nc.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, nc)
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// waitForConns waits until so many connections are open.
func waitForConns(t testing.TB, d *Server, want int) {
	t.Helper()
	waitFor(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.conns) == want
	})
}

// waitFor waits until something is true.
func waitFor(t testing.TB, is func() bool) {
	t.Helper()
	end, look := time.After(testTimeout), time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-end:
			t.Fatal("it does not come true")
		}
	}
}

func TestKeyTooLongIsRejectedBeforeStore(t *testing.T) {
	asked := 0
	store := penstock.StoreFunc(func(t context.Context, r penstock.Request) (penstock.Decision, error) {
		asked++
		return penstock.AllowAll.Take(t, r)
	})
	c := newFakeClient(newServer(t, store, nil, nil, nil))
	long := strings.Repeat("k", maxKey+1)
	for _, words := range [][]string{{"CL.THROTTLE", long, "15", "30", "60"}, {"GET", long}, {"DEL", "a", long}, {"EXISTS", long}} {
		if got := c.do(t, words...); !strings.HasSuffix(got, "key of 4097 bytes: must be at most 4096") {
			t.Errorf("%s: got %s", words[0], got)
		}
	}
	if asked > 0 {
		t.Errorf("the store was asked %d times", asked)
	}
	if got := c.do(t, "CL.THROTTLE", long[1:], "15", "30", "60"); got != "*5 :0 :16 :16 :-1 :0" {
		t.Errorf("a key of %d bytes: got %s", maxKey, got)
	}
}

// What came from outside is repeated in an error, but not at length.
func TestReplyErrorsAreTruncated(t *testing.T) {
	c := newFakeClient(newServerWithClock(newFakeClock()))
	long := strings.Repeat("x", 50_000)
	for _, words := range [][]string{
		{"CL.THROTTLE", "k", long, "30", "60"},
		{long},
		{"NOPE", long, long[:10_000]},
		{"CLIENT", long},
		{"HELLO", "3", long},
		{"CLIENT", "SETINFO", long, "x"},
		{"COMMAND", long},
	} {
		if got := c.do(t, words...); got[0] != '-' || len(got) > 1000 {
			t.Errorf("%.20q: the error has %d bytes: %.80s", words, len(got), got)
		}
	}
}

// In a bubble, timeouts take no time and are exact but for the door's own tick.
func TestConnTimeouts(t *testing.T) {
	stories := map[string]struct {
		want    time.Duration // at least, and at most half as long again
		options Options
		tell    func(nc net.Conn)
	}{
		"says nothing": {
			want: defaultIdleTimeout, tell: func(net.Conn) {},
		},
		"says nothing more": {
			want: defaultIdleTimeout, tell: func(nc net.Conn) { write(nc, encode("PING")) },
		},
		"stops in the middle of a command": {
			want: defaultCommandTimeout, tell: func(nc net.Conn) { write(nc, encode("PING")+"*2\r\n$4\r\nEC") },
		},
		"stops in the middle of a line": {
			want: defaultCommandTimeout, tell: func(nc net.Conn) { write(nc, "PI") },
		},
		"sends a byte a second": {
			want: defaultCommandTimeout, tell: func(nc net.Conn) {
				for range 100 {
					time.Sleep(time.Second)
					if _, err := nc.Write([]byte("a")); err != nil {
						return
					}
				}
			},
		},
		"as the operator says": {
			want: time.Minute, options: Options{IdleTimeout: time.Minute}, tell: func(net.Conn) {},
		},
	}
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newPipeListener()
				serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, &story.options), h)
				nc := h.dial()
				var telling sync.WaitGroup
				telling.Go(func() { story.tell(nc) })
				began := time.Now()
				_, _ = io.Copy(io.Discard, nc)
				took := time.Since(began)
				telling.Wait()
				if took < story.want || took > story.want*3/2 {
					t.Errorf("cut off after %v, want %v", took, story.want)
				}
			})
		})
	}
}

// Hundreds who send a byte a second are cut off, and in the meantime nobody else
// notices.
func TestConnSlowlorisIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPipeListener()
		d := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
		serve(t, d, h)
		good := newClient(t, h.dial())
		var all sync.WaitGroup
		for range 500 {
			nc := h.dial()
			all.Go(func() {
				for _, b := range []byte(encode("ECHO", strings.Repeat("x", 1000))) {
					if _, err := nc.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
				t.Error("a command took its time, and was let")
			})
		}
		for range 5 {
			began := time.Now()
			good.want("+PONG", "PING")
			if took := time.Since(began); took > 0 {
				t.Errorf("PING took %v", took)
			}
			time.Sleep(time.Second)
		}
		all.Wait()
		synctest.Wait()
		waitForConns(t, d, 1)
		good.want("+PONG", "PING")
	})
}

func write(nc net.Conn, text string) { _, _ = io.WriteString(nc, text) }

// A client that does not read its answers is not read from, and then cut off.
func TestConnSlowReaderIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPipeListener()
		serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), h)
		nc := h.dial()
		began, sent := time.Now(), 0
		for {
			n, err := io.WriteString(nc, encode("ECHO", strings.Repeat("x", 1000)))
			if sent += n; err != nil {
				break
			}
		}
		if took := time.Since(began); took < defaultWriteTimeout || took > defaultWriteTimeout*3/2 {
			t.Errorf("cut off after %v, want %v", took, defaultWriteTimeout)
		}
		if sent > 2*minReadBuffer {
			t.Errorf("it could send %d bytes before its first answer was taken", sent)
		}
	})
}

// A client that is busy, if slow, is not cut off.
func TestConnSlowButActiveClientStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPipeListener()
		serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), h)
		nc := h.dial()
		defer func() { _ = nc.Close() }()
		for range 10 {
			time.Sleep(defaultIdleTimeout * 3 / 4)
			write(nc, "PI")
			time.Sleep(defaultCommandTimeout * 3 / 4)
			write(nc, "NG\r\n")
			time.Sleep(defaultWriteTimeout * 3 / 4)
			reply := make([]byte, 7)
			if _, err := io.ReadFull(nc, reply); err != nil || string(reply) != "+PONG\r\n" {
				t.Fatalf("got %q, %v", reply, err)
			}
		}
	})
}

// Nor is one who never pauses for long, but is always quiet when the door looks.
func TestConnActiveBetweenTicksStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPipeListener()
		serve(t, newServer(t, penstock.NewMemory(nil), nil, nil, nil), h)
		nc := h.dial()
		defer func() { _ = nc.Close() }()
		reply := make([]byte, 7)
		for began := time.Now(); time.Since(began) < 3*defaultIdleTimeout; time.Sleep(10 * time.Second) {
			write(nc, encode("PING"))
			if _, err := io.ReadFull(nc, reply); err != nil {
				t.Fatalf("cut off after %v: %v", time.Since(began), err)
			}
		}
	})
}

// Small commands with large replies are answered bit by bit.
func TestConnSendsLargeRepliesInPieces(t *testing.T) {
	nc := &fakeConn{pieces: [][]byte{[]byte(strings.Repeat(encode("COMMAND"), 10_000))}}
	d := newServerWithClock(newFakeClock())
	d.startConn(nc)
	d.openConns.Wait()
	one := nc.sent.Len() / 10_000
	if one < 1000 {
		t.Fatalf("a reply has %d bytes, which is none to hoard", one)
	}
	if nc.largest > sendThreshold+one {
		t.Errorf("%d bytes were sent at once, want at most one reply more than %d", nc.largest, sendThreshold)
	}
}

// Clients there is no room for are told so, and INFO tells of them.
func TestServerConnectionLimit(t *testing.T) {
	l := newTestListener(t)
	e := connlimit.New(l, connlimit.Options{Max: 2, Refuse: WriteMaxClients})
	d := newServer(t, penstock.NewMemory(nil), nil, nil, &Options{Listener: e})
	serve(t, d, e)
	first := l.dial(t)
	first.want("+PONG", "PING")
	l.dial(t).want("+PONG", "PING")
	if got := l.dial(t).read(); got != "-ERR max number of clients reached" {
		t.Errorf("the third hears %s", got)
	}
	_ = first.conn.Close()
	waitForConns(t, d, 1)
	again := l.dial(t)
	again.want("+PONG", "PING")
	for section, want := range map[string]string{"stats": `rejected_connections:1\r\n`, "clients": `maxclients:2\r\n`} {
		if got := again.do("INFO", section); !strings.Contains(got, want) {
			t.Errorf("INFO %s says %s, want %s", section, got, want)
		}
	}
	again.want(`*2 "maxclients" "2"`, "CONFIG", "GET", "maxclients")
}

// Before AUTH there is nothing to be had, and little to be said.
func TestServerRequireAuth(t *testing.T) {
	d := newServer(t, penstock.NewMemory(nil), nil, &engine.Options{Token: "secret"}, &Options{RequireAuth: true})
	addr := startServer(t, d)
	c := dial(t, addr)
	noAuthYet := "-NOAUTH Authentication required."
	c.want(noAuthYet, "PING")
	c.want(noAuthYet, "CL.THROTTLE", "k", "15", "30", "60")
	c.want(noAuthYet, "DEL", "k")
	c.want(noAuthYet, "NOPE")
	c.want("-WRONGPASS invalid username-password pair or user is disabled.", "AUTH", "")
	c.want(noAuthYet, "PING")
	if got := c.do("HELLO", "3"); !strings.HasPrefix(got, "-NOAUTH HELLO must be called") {
		t.Errorf("HELLO: got %s", got)
	}
	if got := c.do("HELLO", "3", "AUTH", "default", "secret"); !strings.HasPrefix(got, "%7") {
		t.Errorf("HELLO with AUTH: got %s", got)
	}
	c.want("*5 :0 :16 :15 :-1 :2", "CL.THROTTLE", "k", "15", "30", "60")
	c.want(":1", "DEL", "k")
	c.want(`"`+strings.Repeat("x", 20<<10)+`"`, "ECHO", strings.Repeat("x", 20<<10))
	c.want("+RESET", "RESET")
	c.want(noAuthYet, "PING")

	for raw, want := range map[string]string{
		"*11\r\n":                        "-ERR Protocol error: unauthenticated multibulk length",
		"*2\r\n$4\r\nAUTH\r\n$16385\r\n": "-ERR Protocol error: unauthenticated bulk length",
	} {
		c := dial(t, addr)
		c.send(raw)
		if got := c.read(); got != want {
			t.Errorf("%q: got %s, want %s", raw, got, want)
		}
		if got := c.read(); got != "closed" {
			t.Errorf("%q: then %s, want the end", raw, got)
		}
	}
}
