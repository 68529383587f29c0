package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// connections is the number of connections of a proxy with a few threads.
const connections = 4

// An rlsClient calls a rate limit service over a few connections, with callers/connections calls
// in flight on each. It stands for a proxy, which is written in C++ or runs on another machine:
// gRPC's client would take a third of two cores from the servers that are measured. So it writes
// frames that were encoded before, and of most responses reads only the code. After an error it
// is of no further use.
type rlsClient struct {
	conns []*rlsConn
	sent  atomic.Int64
}

// dialRLS connects to a rate limit service.
func dialRLS(addr string, l rlsLoad) (*rlsClient, error) {
	c := &rlsClient{}
	requests, err := l.encodedRequests()
	if err != nil {
		return nil, err
	}
	for range connections {
		conn, err := dialRLSConn(addr, requests)
		if err != nil {
			c.close()
			return nil, err
		}
		c.conns = append(c.conns, conn)
	}
	return c, nil
}

func (c *rlsClient) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// sendUntil makes calls until the time is up, at least one for each caller, and returns how long
// each of them took.
func (c *rlsClient) sendUntil(until time.Time, check *rlsCheck) ([]time.Duration, error) {
	var made atomic.Int64
	return c.run(check, func(now time.Time) (int, bool) {
		return int(c.sent.Add(1)) % keyCount, made.Add(1) <= callers || now.Before(until)
	})
}

// sendEach makes each call once.
func (c *rlsClient) sendEach(check *rlsCheck) error {
	var sent atomic.Int64
	_, err := c.run(check, func(time.Time) (int, bool) { n := int(sent.Add(1)) - 1; return n, n < keyCount })
	return err
}

// run makes the calls that next returns, on all connections at once.
func (c *rlsClient) run(check *rlsCheck, next func(now time.Time) (n int, ok bool)) ([]time.Duration, error) {
	latencies, errs := make([][]time.Duration, len(c.conns)), make([]error, len(c.conns))
	var running sync.WaitGroup
	for i, conn := range c.conns {
		running.Go(func() { latencies[i], errs[i] = conn.run(check, next) })
	}
	running.Wait()
	return slices.Concat(latencies...), errors.Join(errs...)
}

// An rlsConn is an HTTP/2 connection to a rate limit service.
type rlsConn struct {
	net.Conn
	out      *bufio.Writer
	framer   *http2.Framer
	requests [][]byte // messages with gRPC's prefix
	first    []byte   // the header block of the first request
	headers  []byte   // that of all others: references to the first
	decoder  *hpack.Decoder
	status   string // the last grpc-status
	streams  uint32 // the ID of the next one
	calls    map[uint32]*rlsCall
	idle     []*rlsCall
	window   int // how many bytes of messages the server still accepts
	unread   int // how many bytes of responses the server was not told to be read
}

// An rlsCall is a call in flight.
type rlsCall struct {
	n        int
	sentAt   time.Time
	response []byte
}

// A flushingReader sends what was written before it waits for more, though not for ever.
type flushingReader struct {
	net.Conn
	out *bufio.Writer
}

func (r flushingReader) Read(p []byte) (int, error) {
	if err := r.out.Flush(); err != nil {
		return 0, err
	}
	if err := r.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return r.Conn.Read(p)
}

const (
	bufferBytes   = 64 << 10
	initialWindow = 1<<16 - 1 // of a connection, until it is changed
	receiveWindow = 1 << 30
	callsInFlight = callers / connections
	silence       = time.Minute // after which a server is given up
)

func dialRLSConn(addr string, requests [][]byte) (*rlsConn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriterSize(conn, bufferBytes)
	c := &rlsConn{Conn: conn, out: out, requests: requests, streams: 1, calls: map[uint32]*rlsCall{}, window: initialWindow}
	c.framer = http2.NewFramer(out, bufio.NewReaderSize(flushingReader{conn, out}, bufferBytes))
	c.framer.SetReuseFrames()
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			c.status = f.Value
		}
	})
	for range callsInFlight {
		c.idle = append(c.idle, &rlsCall{})
	}
	c.encodeHeaders(addr)
	_, _ = out.WriteString(http2.ClientPreface)
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: receiveWindow})
	_ = c.framer.WriteWindowUpdate(0, receiveWindow)
	return c, out.Flush() // with the first error of all
}

// encodeHeaders encodes the headers of requests. Those of the second refer to those of the
// first, and do not change what the server remembers.
func (c *rlsConn) encodeHeaders(addr string) {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for range 2 {
		c.first, c.headers = c.headers, nil
		block.Reset()
		for _, f := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
			{":authority", addr},
			{"content-type", "application/grpc"},
			{"user-agent", "bench"},
			{"te", "trailers"},
			{"grpc-timeout", "10S"}, // Envoy sends one with every call; here it is long enough for a busy machine
		} {
			_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into memory
		}
		c.headers = slices.Clone(block.Bytes())
	}
}

// run makes the calls that next returns, and waits for all of them.
func (c *rlsConn) run(check *rlsCheck, next func(now time.Time) (n int, ok bool)) (latencies []time.Duration, err error) {
	now := time.Now()
	for range callsInFlight {
		if err := c.sendNext(now, next); err != nil {
			return nil, err
		}
	}
	for len(c.calls) > 0 {
		ended, err := c.read()
		if err != nil {
			return nil, err
		}
		if ended == nil {
			continue
		}
		if err := check.response(ended.n, ended.response); err != nil {
			return nil, err
		}
		now = time.Now()
		latencies = append(latencies, now.Sub(ended.sentAt))
		c.idle = append(c.idle, ended)
		if err := c.sendNext(now, next); err != nil {
			return nil, err
		}
	}
	return latencies, nil
}

// sendNext writes the next request, if there is one.
func (c *rlsConn) sendNext(now time.Time, next func(now time.Time) (n int, ok bool)) error {
	n, ok := next(now)
	if !ok {
		return nil
	}
	message := c.requests[n]
	if c.window -= len(message); c.window < 0 {
		return errors.New("the server does not read its requests")
	}
	headers := c.headers
	if c.streams == 1 {
		headers = c.first
	}
	call := c.idle[len(c.idle)-1]
	c.idle = c.idle[:len(c.idle)-1]
	call.n, call.sentAt, call.response = n, now, call.response[:0]
	id := c.streams
	c.calls[id] = call
	c.streams += 2
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true}); err != nil {
		return err
	}
	return c.framer.WriteData(id, true, message)
}

// read reads a frame, and returns the call that it ends, if any.
func (c *rlsConn) read() (ended *rlsCall, err error) {
	frame, err := c.framer.ReadFrame()
	if err != nil {
		return nil, err
	}
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		return c.readHeaders(f)
	case *http2.DataFrame:
		return nil, c.readData(f)
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.window += int(f.Increment)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return nil, c.framer.WritePing(true, f.Data)
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return nil, c.framer.WriteSettingsAck()
		}
	default:
		return nil, fmt.Errorf("unexpected frame: %v", f)
	}
	return nil, nil
}

// readHeaders reads the headers or the trailers of a response.
func (c *rlsConn) readHeaders(f *http2.HeadersFrame) (ended *rlsCall, err error) {
	if !f.HeadersEnded() {
		return nil, errors.New("headers of more than a frame")
	}
	c.status = ""
	if _, err := c.decoder.Write(f.HeaderBlockFragment()); err != nil {
		return nil, err
	}
	if err := c.decoder.Close(); err != nil || !f.StreamEnded() {
		return nil, err
	}
	if c.status != "0" {
		return nil, fmt.Errorf("grpc-status %q", c.status)
	}
	if ended = c.calls[f.StreamID]; ended == nil {
		return nil, fmt.Errorf("stream %d ends, which is not open", f.StreamID)
	}
	delete(c.calls, f.StreamID)
	return ended, nil
}

// readData reads a part of a response, and lets the server send as much again.
func (c *rlsConn) readData(f *http2.DataFrame) error {
	call := c.calls[f.StreamID]
	if call == nil {
		return fmt.Errorf("data on stream %d, which is not open", f.StreamID)
	}
	call.response = append(call.response, f.Data()...)
	if c.unread += int(f.Length); c.unread < receiveWindow/2 {
		return nil
	}
	update := c.unread
	c.unread = 0
	return c.framer.WriteWindowUpdate(0, uint32(update)) //nolint:gosec // it is half of the window, and a frame
}
