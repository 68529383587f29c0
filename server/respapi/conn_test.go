package respapi

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// replyTo returns the replies of a new server to bytes that arrive in pieces.
func replyTo(pieces [][]byte) string {
	s := newServerWithClock(newFakeClock())
	nc := &fakeConn{pieces: pieces}
	s.startConn(nc)
	s.openConns.Wait()
	if !nc.closed {
		panic("the connection was not closed after EOF")
	}
	return nc.sent.String()
}

// The replies do not depend on how the bytes are split into reads.
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

// checkReplies fails the test unless all replies are valid RESP.
func checkReplies(t *testing.T, stream []byte, replies string) {
	for r := bufio.NewReader(strings.NewReader(replies)); ; {
		text, err := readReply(r)
		if err != nil {
			t.Fatalf("the replies to %q are not RESP: %v\n%q", stream, err, replies)
		}
		if text == "closed" {
			return
		}
	}
}

// The read buffer grows for long pipelines, up to the longest command, and shrinks again.
func TestConnBufferGrowsAndShrinks(t *testing.T) {
	s := newServerWithClock(newFakeClock())
	long := []byte(strings.Repeat(encode("ECHO", strings.Repeat("x", 40_000)), 30))
	short := []byte(encode("PING"))
	nc := &fakeConn{pieces: [][]byte{long, short, short, short}}
	c := newConn(s, nc)
	c.in = make([]byte, minReadBuffer)
	largest := 0
	for c.receive() == nil {
		c.executeBuffered()
		c.send()
		largest = max(largest, len(c.in))
		if cap(c.out.buf) > maxKeptReplies {
			t.Fatalf("a reply buffer of %d bytes is kept, want at most %d", cap(c.out.buf), maxKeptReplies)
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

// Hostile input leaves no memory behind, and other clients are served meanwhile.
func TestConnHostileInputLeavesHeapFlat(t *testing.T) {
	s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	addr := startServer(t, s)
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
			t.Fatalf("meanwhile PING: got %s", got)
		}
	}
	waitForConns(t, s, 1)
	if grown := int64(heapBytes()) - int64(before); grown > 4<<20 {
		t.Errorf("%d attacks left %d bytes behind", 30*len(attacks), grown)
	}
}

// sendAndDrain sends text and reads until the server closes the connection.
func sendAndDrain(t *testing.T, addr, text string) {
	nc, err := net.DialTimeout("tcp", addr, testTimeout)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = nc.Close() }()
	_ = nc.SetDeadline(time.Now().Add(testTimeout))
	_, _ = io.WriteString(nc, text) // the server may have closed the connection already
	_ = nc.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, nc)
}

// Small commands with large replies do not fill the memory.
func TestConnSendsLargeRepliesInPieces(t *testing.T) {
	nc := &fakeConn{pieces: [][]byte{[]byte(strings.Repeat(encode("COMMAND"), 1000))}}
	s := newServerWithClock(newFakeClock())
	s.startConn(nc)
	s.openConns.Wait()
	one := nc.sent.Len() / 1000
	if one < 1000 {
		t.Fatalf("a reply has only %d bytes", one)
	}
	if nc.largest > sendThreshold+one {
		t.Errorf("%d bytes were sent at once, want at most one reply more than %d", nc.largest, sendThreshold)
	}
}

// A client that is still sending when the server closes the connection gets the last reply
// and then EOF, not a reset.
func TestQuitDeliversLastReply(t *testing.T) {
	s := newServer(t, penstock.NewMemory(nil), nil, nil, nil)
	s.closeWaits.linger = testTimeout
	c := dial(t, startServer(t, s))
	c.send(encode("QUIT") + strings.Repeat(encode("PING"), 4000))
	for _, want := range []string{"+OK", "closed"} {
		if got := c.read(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestObserveLatencyOncePerPipelineWithDecisions(t *testing.T) {
	var batches atomic.Int64
	s := newServer(t, penstock.NewMemory(nil), nil, nil, &Options{ObserveLatency: func(took time.Duration) {
		if took < 0 || took > testTimeout {
			t.Errorf("a pipeline took %v", took)
		}
		batches.Add(1)
	}})
	c := newFakeClient(s)
	for _, test := range []struct {
		commands string
		want     int64 // pipelines observed until then
	}{
		{encode("PING") + encode("INFO") + encode("GET", "k"), 0},
		{encode("CL.THROTTLE", "k", "5", "5", "60") + encode("PING") + encode("CL.THROTTLE", "k", "5", "5", "60"), 1},
		{encode("PENSTOCK.TAKE", "KEY", "k", "LIMIT", "5/1m"), 2},
		{encode("PING"), 2},
		{"*1\r\n$4\r\nPI", 2},
		{"NG\r\n", 2},
		{encode("CL.THROTTLE", "k", "5", "5", "60") + encode("INFO"), 3},
	} {
		c.doAll(t, test.commands)
		if got := batches.Load(); got != test.want {
			t.Errorf("after %q: observed %d times, want %d", test.commands, got, test.want)
		}
	}
}
