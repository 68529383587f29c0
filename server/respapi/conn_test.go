package respapi

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server/engine"
)

// newServerWithClock returns a door to an empty store, both on a clock.
func newServerWithClock(c *fakeClock) *Server {
	d := must(New(engine.New(c.memory(), &engine.Options{Token: "secret"}), nil))
	d.now, d.started = c.now, c.now()
	return d
}

// newFakeClient returns a connection that nobody serves: what it is given it answers at once.
func newFakeClient(d *Server) *conn { return newConn(d, &fakeConn{}) }

// do returns the reply to a command.
func (c *conn) do(t interface{ Fatalf(string, ...any) }, words ...string) string {
	c.in = []byte(encode(words...))
	c.start, c.end = 0, len(c.in)
	c.executeBuffered()
	text, err := readReply(bufio.NewReader(bytes.NewReader(c.out.buf)))
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	c.out.buf = c.out.buf[:0]
	return text
}

// A fakeConn is a connection on which one side has said all that it will, in pieces.
type fakeConn struct {
	pieces  [][]byte
	sent    bytes.Buffer
	largest int // bytes sent at once
	closed  bool
}

func (t *fakeConn) Read(p []byte) (int, error) {
	if len(t.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, t.pieces[0])
	if t.pieces[0] = t.pieces[0][n:]; len(t.pieces[0]) == 0 {
		t.pieces = t.pieces[1:]
	}
	return n, nil
}

func (t *fakeConn) Write(p []byte) (int, error) {
	t.largest = max(t.largest, len(p))
	return t.sent.Write(p)
}

func (t *fakeConn) Close() error        { t.closed = true; return nil }
func (t *fakeConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6380} }

func (t *fakeConn) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711} }
func (t *fakeConn) SetDeadline(time.Time) error      { return nil }
func (t *fakeConn) SetReadDeadline(time.Time) error  { return nil }
func (t *fakeConn) SetWriteDeadline(time.Time) error { return nil }

// replyTo serves a tape on a door of its own, and returns what was sent.
func replyTo(pieces [][]byte) string {
	d := newServerWithClock(newFakeClock())
	nc := &fakeConn{pieces: pieces}
	d.startConn(nc)
	d.openConns.Wait()
	if !nc.closed {
		panic("a connection whose client has gone stays open")
	}
	return nc.sent.String()
}

// However the bytes come in, the answers are the same.
func FuzzConnSplitReads(f *testing.F) {
	for _, seed := range []string{
		encode("CL.THROTTLE", "k", "15", "30", "60") + encode("CL.THROTTLE", "k", "15", "30", "60", "20"),
		encode("PING") + "PING hello\r\n" + encode("INFO") + encode("GET", "k") + "*0\r\n\r\n",
		"echo \"a\\x00\\n\" \r\necho 'x'\n" + encode("HELLO", "3") + encode("CLIENT", "LIST") + encode("QUIT") + "PING\r\n",
		"*1\r\n$4\r\nPINGxx", "*2\r\n$4\r\nECHO\r\n$70000\r\n", "*100\r\n", "$4\r\n", "*1\r\n*1\r\n", "*-1\r\n*1\r\n$-1\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\n\r\n", "cl.throttle k 1 2 3\n" + strings.Repeat("a", maxInline+1) + "\n",
		encode("ECHO", strings.Repeat("x", 5000)) + encode("DEL", "k", "l") + encode("COMMAND") + encode("COMMAND", "DOCS"),
		encode("MGET", "a\r\nb") + "echo \"unbalanced\r\n" + encode("PING"),
	} {
		f.Add([]byte(seed), uint16(7))
	}
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16) {
		whole := replyTo([][]byte{bytes.Clone(stream)})
		at := min(int(cut), len(stream))
		halves := replyTo([][]byte{bytes.Clone(stream[:at]), bytes.Clone(stream[at:])})
		var bytewise [][]byte
		for i := range stream {
			bytewise = append(bytewise, []byte{stream[i]})
		}
		if halves != whole {
			t.Errorf("%q cut at %d:\ngot  %q\nwant %q", stream, at, halves, whole)
		}
		if single := replyTo(bytewise); single != whole {
			t.Errorf("%q byte by byte:\ngot  %q\nwant %q", stream, single, whole)
		}
		checkReplies(t, stream, whole)
	})
}

// checkReplies fails the test unless a client could read all of the replies.
func checkReplies(t *testing.T, stream []byte, replies string) {
	for r := bufio.NewReader(strings.NewReader(replies)); ; {
		text, err := readReply(r)
		if err != nil {
			t.Fatalf("the replies to %q are no RESP: %v\n%q", stream, err, replies)
		}
		if text == "closed" {
			return
		}
	}
}

// A take from memory costs nothing that would have to be collected.
func TestThrottleAllocatesNothing(t *testing.T) {
	c := newFakeClient(newServerWithClock(newFakeClock()))
	raw := strings.Repeat(encode("CL.THROTTLE", "user:42", "15", "30", "60"), 15) +
		encode("cl.throttle", "user:43", "15", "30", "60", "2")
	c.in = []byte(raw)
	decide := func() {
		c.start, c.end = 0, len(c.in)
		c.executeBuffered()
		if n := bytes.Count(c.out.buf, []byte("*5\r\n")); n != 16 {
			t.Fatalf("%d replies to 16 commands: %q", n, c.out.buf)
		}
		c.out.buf = c.out.buf[:0]
	}
	if n := testing.AllocsPerRun(100, decide); n != 0 {
		t.Errorf("16 commands allocate %v times, want never", n)
	}
}

// The buffer grows for long pipelines, and not beyond one command; then it goes
// back to what it was.
func TestConnBufferGrowsAndShrinks(t *testing.T) {
	d := newServerWithClock(newFakeClock())
	long := []byte(strings.Repeat(encode("ECHO", strings.Repeat("x", 40_000)), 30))
	short := []byte(encode("PING"))
	nc := &fakeConn{pieces: [][]byte{long, short, short, short}}
	c := newConn(d, nc)
	c.in = make([]byte, minReadBuffer)
	largest := 0
	for c.receive() {
		c.executeBuffered()
		c.send()
		largest = max(largest, len(c.in))
		if cap(c.out.buf) > maxKeptReplies {
			t.Fatalf("room for %d bytes is kept, want at most %d", cap(c.out.buf), maxKeptReplies)
		}
	}
	if got := strings.Count(nc.sent.String(), "$40000"); got != 30 {
		t.Errorf("%d of 30 commands answered", got)
	}
	if largest != maxReadBuffer {
		t.Errorf("the buffer grew to %d bytes, want %d", largest, maxReadBuffer)
	}
	if len(c.in) != minReadBuffer {
		t.Errorf("after short commands the buffer has %d bytes, want %d", len(c.in), minReadBuffer)
	}
}
