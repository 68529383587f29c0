package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

const (
	connections   = 4 // of a proxy with a few threads
	bufferBytes   = 64 << 10
	receiveWindow = 1 << 30     // more than all responses of a run
	silence       = time.Minute // after which a server is given up
)

// An rlsClient calls a rate limit service over a few connections, with callers/connections calls
// in flight on each. It stands for a proxy, which is written in C++ or runs on another machine:
// gRPC's client takes 50 µs of processor time for a call with an encoded message, twice what the
// daemon takes, and this one 5. It writes frames that were encoded before, and of most responses
// reads only the code. After an error it is of no further use.
type rlsClient struct {
	conns []*rlsConn
	sent  atomic.Int64
}

// dialRLS connects to a rate limit service.
func dialRLS(addr string, l rlsLoad) *rlsClient {
	c := &rlsClient{}
	requests := l.encodedRequests()
	for range connections {
		c.conns = append(c.conns, newRLSConn(harness.Must(net.Dial("tcp", addr)), requests))
	}
	return c
}

func (c *rlsClient) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// A nextCall returns the number of the next call, if there is to be one at this time.
type nextCall func(now time.Time) (n int, ok bool)

// send makes calls until a time, at least so many, for one key after the other, and returns how long
// each of them took.
func (c *rlsClient) send(until time.Time, least int64, check *rlsCheck) ([]time.Duration, error) {
	var made atomic.Int64
	next := func(now time.Time) (n int, ok bool) {
		if ok = made.Add(1) <= least || now.Before(until); ok {
			n = int(c.sent.Add(1)) % keyCount
		}
		return n, ok
	}
	latencies := make([][]time.Duration, len(c.conns))
	_, err := harness.Concurrently(len(c.conns), func(i int) (err error) {
		latencies[i], err = c.conns[i].run(check, next)
		return err
	})
	return slices.Concat(latencies...), err
}

// An rlsConn is an HTTP/2 connection to a rate limit service.
type rlsConn struct {
	net.Conn
	*http2.Framer
	in       *bufio.Reader
	out      *bufio.Writer
	requests [][]byte // messages with gRPC's prefix
	headers  [][]byte // the header block of the next request; the last is that of all others
	decoder  *hpack.Decoder
	status   string // the last grpc-status
	streams  uint32 // the ID of the next one
	calls    map[uint32]rlsCall
}

// An rlsCall is a call in flight.
type rlsCall struct {
	n        int
	sentAt   time.Time
	answered bool
}

func newRLSConn(conn net.Conn, requests [][]byte) *rlsConn {
	c := &rlsConn{Conn: conn, in: bufio.NewReaderSize(conn, bufferBytes), out: bufio.NewWriterSize(conn, bufferBytes)}
	c.requests, c.headers, c.streams, c.calls = requests, encodedHeaders(conn.RemoteAddr().String()), 1, map[uint32]rlsCall{}
	c.Framer = http2.NewFramer(c.out, c.in)
	c.SetReuseFrames()
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			c.status = f.Value
		}
	})
	_, _ = c.out.WriteString(http2.ClientPreface) // the writer keeps its first error until it is flushed
	_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: receiveWindow})
	_ = c.WriteWindowUpdate(0, receiveWindow)
	return c
}

// encodedHeaders returns the headers of the first request, and those of all others, which refer to
// those of the first and do not change what the server remembers.
func encodedHeaders(addr string) (blocks [][]byte) {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for range 2 {
		block.Reset()
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"},
			{Name: ":scheme", Value: "http"},
			{Name: ":path", Value: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
			{Name: ":authority", Value: addr},
			{Name: "content-type", Value: "application/grpc"},
			{Name: "user-agent", Value: "bench"},
			{Name: "te", Value: "trailers"},
			{Name: "grpc-timeout", Value: "10S"}, // Envoy sends one with every call; here it is long enough for a busy machine
		} {
			_ = e.WriteField(f) // into memory
		}
		blocks = append(blocks, slices.Clone(block.Bytes()))
	}
	return blocks
}

// run makes the calls that next returns, and waits for all of them.
func (c *rlsConn) run(check *rlsCheck, next nextCall) (latencies []time.Duration, err error) {
	for range callers / connections {
		if err := c.sendNext(time.Now(), next); err != nil {
			return nil, err
		}
	}
	for len(c.calls) > 0 {
		sentAt, err := c.read(check)
		if err != nil {
			return nil, err
		}
		if sentAt.IsZero() {
			continue
		}
		now := time.Now()
		latencies = append(latencies, now.Sub(sentAt))
		if err := c.sendNext(now, next); err != nil {
			return nil, err
		}
	}
	return latencies, nil
}

// sendNext writes the next request, if there is one.
func (c *rlsConn) sendNext(now time.Time, next nextCall) error {
	n, ok := next(now)
	if !ok {
		return nil
	}
	id, headers := c.streams, c.headers[0]
	c.streams, c.headers = id+2, c.headers[len(c.headers)-1:]
	c.calls[id] = rlsCall{n: n, sentAt: now}
	if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true}); err != nil {
		return err
	}
	return c.WriteData(id, true, c.requests[n])
}

// read reads a frame, and returns when the call was sent that it ends, if any. Before it waits, though not
// for ever, it sends what was written.
func (c *rlsConn) read(check *rlsCheck) (sentAt time.Time, err error) {
	if c.in.Buffered() == 0 {
		if err := errors.Join(c.out.Flush(), c.SetReadDeadline(time.Now().Add(silence))); err != nil {
			return sentAt, err
		}
	}
	frame, err := c.ReadFrame()
	if err != nil {
		return sentAt, err
	}
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		return c.readHeaders(f)
	case *http2.DataFrame: // a whole message: servers do not split small ones
		call, isOpen := c.calls[f.StreamID]
		if !isOpen || call.answered {
			return sentAt, fmt.Errorf("data on stream %d: open is %t", f.StreamID, isOpen)
		}
		call.answered = true
		c.calls[f.StreamID] = call
		return sentAt, check.response(call.n, f.Data())
	case *http2.PingFrame:
		if !f.IsAck() {
			err = c.WritePing(true, f.Data)
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			err = c.WriteSettingsAck()
		}
	case *http2.WindowUpdateFrame: // requests in flight are far smaller than any window
	default:
		err = fmt.Errorf("unexpected frame: %v", f)
	}
	return sentAt, err
}

// readHeaders reads the headers or the trailers of a response.
func (c *rlsConn) readHeaders(f *http2.HeadersFrame) (sentAt time.Time, err error) {
	c.status = ""
	_, err = c.decoder.Write(f.HeaderBlockFragment())
	if err = errors.Join(err, c.decoder.Close()); err != nil || !f.StreamEnded() {
		return sentAt, err
	}
	call := c.calls[f.StreamID]
	delete(c.calls, f.StreamID)
	if c.status != "0" || !call.answered || !f.HeadersEnded() {
		return sentAt, fmt.Errorf("grpc-status %q, answered is %t", c.status, call.answered)
	}
	return call.sentAt, nil
}
