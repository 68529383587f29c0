package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A loadClient sends requests to one API. It is for one goroutine.
type loadClient interface {
	// send sends requests, pipelined if the API can, and sets allowed in each.
	send(requests []loadRequest) error
	close()
}

// A loadRequest takes one unit of a key.
type loadRequest struct {
	keyIndex int
	key      string
	allowed  bool
}

// A singleClient is a [loadClient] that sends one request after the other. It shares its
// connections.
type singleClient func(key string) (allowed bool, err error)

func (c singleClient) send(requests []loadRequest) (err error) {
	for i := range requests {
		if requests[i].allowed, err = c(requests[i].key); err != nil {
			return err
		}
	}
	return nil
}

func (c singleClient) close() {}

// openAPI returns a function that opens clients of an API, and one that closes the
// connections they share.
func openAPI(o benchOptions) (open func() (loadClient, error), closeAll func(), err error) {
	switch o.api {
	case "grpc":
		return openGRPC(o)
	case "http":
		return openHTTP(o)
	}
	return func() (loadClient, error) { return openRESP(o) }, func() {}, nil
}

// A grpcLoadClient calls ShouldRateLimit, as Envoy does.
type grpcLoadClient struct {
	client  envoyrls.RateLimitServiceClient
	entry   *envoyratelimit.RateLimitDescriptor_Entry
	request *envoyrls.RateLimitRequest
}

// openGRPC opens as many connections as there are processors, as Envoy does with one
// per worker thread.
func openGRPC(o benchOptions) (func() (loadClient, error), func(), error) {
	var connections []*grpc.ClientConn
	closeAll := func() {
		for _, c := range connections {
			_ = c.Close()
		}
	}
	for range min(runtime.GOMAXPROCS(0), o.callers) {
		c, err := grpc.NewClient(o.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		connections = append(connections, c)
	}
	var next atomic.Int64
	open := func() (loadClient, error) {
		c := connections[int(next.Add(1))%len(connections)]
		return singleClient(newGRPCLoadClient(c, o).take), nil
	}
	return open, closeAll, nil
}

func newGRPCLoadClient(conn *grpc.ClientConn, o benchOptions) *grpcLoadClient {
	c := &grpcLoadClient{client: envoyrls.NewRateLimitServiceClient(conn), entry: &envoyratelimit.RateLimitDescriptor_Entry{Key: "key"}}
	c.request = &envoyrls.RateLimitRequest{
		Domain: o.domain,
		Descriptors: []*envoyratelimit.RateLimitDescriptor{{
			Entries: []*envoyratelimit.RateLimitDescriptor_Entry{c.entry},
			Limit: &envoyratelimit.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: uint32(o.units), Unit: envoytype.RateLimitUnit_DAY,
			},
		}},
	}
	return c
}

func (c *grpcLoadClient) take(key string) (allowed bool, err error) {
	c.entry.Value = key
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	response, err := c.client.ShouldRateLimit(ctx, c.request)
	if err != nil {
		return false, err
	}
	if len(response.Statuses) != 1 || response.Statuses[0].CurrentLimit == nil {
		return false, fmt.Errorf("the server applied no limit: it has no rules for the domain %q", c.request.Domain)
	}
	return response.OverallCode == envoyrls.RateLimitResponse_OK, nil
}

// An httpLoadClient sends POST /v1/take.
type httpLoadClient struct {
	client *http.Client
	url    string
	units  int
	body   []byte
}

func openHTTP(o benchOptions) (func() (loadClient, error), func(), error) {
	transport := &http.Transport{MaxIdleConnsPerHost: o.callers, DisableCompression: true}
	client := &http.Client{Transport: transport, Timeout: requestTimeout}
	open := func() (loadClient, error) {
		return singleClient((&httpLoadClient{client: client, url: "http://" + o.addr + "/v1/take", units: o.units}).take), nil
	}
	return open, transport.CloseIdleConnections, nil
}

func (c *httpLoadClient) take(key string) (allowed bool, err error) {
	c.body = fmt.Appendf(c.body[:0], `{"key":%q,"limit":"%d/24h"}`, key, c.units)
	response, err := c.client.Post(c.url, "application/json", bytes.NewReader(c.body))
	if err != nil {
		return false, err
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	_ = response.Body.Close()
	switch status := response.StatusCode; {
	case err != nil:
		return false, err
	case status != http.StatusOK && status != http.StatusTooManyRequests:
		return false, fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(text))
	}
	return response.StatusCode == http.StatusOK, nil
}

// A respLoadClient sends CL.THROTTLE.
type respLoadClient struct {
	conn   net.Conn
	reader *bufio.Reader
	units  string
	burst  string
	out    []byte
}

func openRESP(o benchOptions) (loadClient, error) {
	conn, err := net.DialTimeout("tcp", o.addr, requestTimeout)
	if err != nil {
		return nil, err
	}
	return &respLoadClient{
		conn: conn, reader: bufio.NewReader(conn), units: strconv.Itoa(o.units), burst: strconv.Itoa(o.units - 1),
	}, nil
}

func (c *respLoadClient) send(requests []loadRequest) error {
	c.out = c.out[:0]
	for i := range requests {
		c.out = appendCommand(c.out, "CL.THROTTLE", requests[i].key, c.burst, c.units, "86400")
	}
	if err := c.conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return err
	}
	for i := range requests {
		limited, err := c.readReply()
		if err != nil {
			return err
		}
		requests[i].allowed = !limited
	}
	return nil
}

func appendCommand(out []byte, words ...string) []byte {
	out = append(strconv.AppendInt(append(out, '*'), int64(len(words)), 10), "\r\n"...)
	for _, w := range words {
		out = append(strconv.AppendInt(append(out, '$'), int64(len(w)), 10), "\r\n"...)
		out = append(append(out, w...), "\r\n"...)
	}
	return out
}

// readReply reads the five numbers of a reply. The first is 1 if the request was limited.
func (c *respLoadClient) readReply() (limited bool, err error) {
	for i := range 6 {
		line, err := c.reader.ReadSlice('\n')
		switch {
		case err != nil && (i > 0 || len(line) > 0):
			return false, errors.New("reply cut off: " + err.Error()) // not wrapped: this is no orderly EOF
		case err != nil:
			return false, err
		}
		line = bytes.TrimSuffix(line, []byte("\r\n"))
		switch {
		case i == 0 && string(line) == "*5":
		case i == 1 && string(line) == ":1":
			limited = true
		case i == 0 || len(line) < 2 || line[0] != ':':
			return false, errors.New("unexpected reply: " + strconv.Quote(string(line)))
		}
	}
	return limited, nil
}

func (c *respLoadClient) close() { _ = c.conn.Close() }
