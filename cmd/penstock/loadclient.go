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

// An asker asks a door. One goroutine uses it.
type asker interface {
	// ask asks all questions at once, and writes whether each was granted.
	ask(questions []question) error
	close()
}

// A question is for one unit of a key.
type question struct {
	index   int // of the key
	key     string
	granted bool
}

// dial returns how to make askers of a door, and how to end what they share.
func dial(o benchOptions) (open func() (asker, error), hangUp func(), err error) {
	switch o.door {
	case "grpc":
		return dialGRPC(o)
	case "http":
		return dialHTTP(o)
	}
	return func() (asker, error) { return openRESP(o) }, func() {}, nil
}

// A grpcAsker asks as Envoy does.
type grpcAsker struct {
	client  envoyrls.RateLimitServiceClient
	entry   *envoyratelimit.RateLimitDescriptor_Entry
	request *envoyrls.RateLimitRequest
}

// dialGRPC opens as many connections as there are processors, as Envoy does.
func dialGRPC(o benchOptions) (func() (asker, error), func(), error) {
	var connections []*grpc.ClientConn
	hangUp := func() {
		for _, c := range connections {
			_ = c.Close()
		}
	}
	for range min(runtime.GOMAXPROCS(0), o.callers) {
		c, err := grpc.NewClient(o.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			hangUp()
			return nil, nil, err
		}
		connections = append(connections, c)
	}
	var next atomic.Int64
	open := func() (asker, error) {
		c := connections[int(next.Add(1))%len(connections)]
		return newGRPCAsker(c, o), nil
	}
	return open, hangUp, nil
}

func newGRPCAsker(c *grpc.ClientConn, o benchOptions) *grpcAsker {
	a := &grpcAsker{client: envoyrls.NewRateLimitServiceClient(c), entry: &envoyratelimit.RateLimitDescriptor_Entry{Key: "key"}}
	a.request = &envoyrls.RateLimitRequest{
		Domain: o.domain,
		Descriptors: []*envoyratelimit.RateLimitDescriptor{{
			Entries: []*envoyratelimit.RateLimitDescriptor_Entry{a.entry},
			Limit: &envoyratelimit.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: uint32(o.each), Unit: envoytype.RateLimitUnit_DAY,
			},
		}},
	}
	return a
}

func (a *grpcAsker) ask(questions []question) error {
	for i := range questions {
		a.entry.Value = questions[i].key
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		answer, err := a.client.ShouldRateLimit(ctx, a.request)
		cancel()
		if err != nil {
			return err
		}
		if len(answer.Statuses) != 1 || answer.Statuses[0].CurrentLimit == nil {
			return fmt.Errorf("nothing was counted: the server has no rules for the domain %q", a.request.Domain)
		}
		questions[i].granted = answer.OverallCode == envoyrls.RateLimitResponse_OK
	}
	return nil
}

func (a *grpcAsker) close() {}

// An httpAsker asks POST /v1/take.
type httpAsker struct {
	client *http.Client
	url    string
	each   int
	body   []byte
}

func dialHTTP(o benchOptions) (func() (asker, error), func(), error) {
	transport := &http.Transport{MaxIdleConnsPerHost: o.callers, DisableCompression: true}
	client := &http.Client{Transport: transport, Timeout: answerTime}
	open := func() (asker, error) {
		return &httpAsker{client: client, url: "http://" + o.addr + "/v1/take", each: o.each}, nil
	}
	return open, transport.CloseIdleConnections, nil
}

func (a *httpAsker) ask(questions []question) error {
	for i := range questions {
		a.body = fmt.Appendf(a.body[:0], `{"key":%q,"limit":"%d/24h"}`, questions[i].key, a.each)
		answer, err := a.client.Post(a.url, "application/json", bytes.NewReader(a.body))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
		_ = answer.Body.Close()
		switch {
		case err != nil:
			return err
		case answer.StatusCode == http.StatusOK:
			questions[i].granted = true
		case answer.StatusCode == http.StatusTooManyRequests:
			questions[i].granted = false
		default:
			return fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(text))
		}
	}
	return nil
}

func (a *httpAsker) close() {}

// A respAsker asks CL.THROTTLE.
type respAsker struct {
	conn   net.Conn
	reader *bufio.Reader
	each   string
	burst  string
	out    []byte
}

func openRESP(o benchOptions) (asker, error) {
	conn, err := net.DialTimeout("tcp", o.addr, answerTime)
	if err != nil {
		return nil, err
	}
	return &respAsker{
		conn: conn, reader: bufio.NewReader(conn), each: strconv.Itoa(o.each), burst: strconv.Itoa(o.each - 1),
	}, nil
}

func (a *respAsker) ask(questions []question) error {
	a.out = a.out[:0]
	for i := range questions {
		a.out = appendCommand(a.out, "CL.THROTTLE", questions[i].key, a.burst, a.each, "86400")
	}
	if err := a.conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := a.conn.Write(a.out); err != nil {
		return err
	}
	for i := range questions {
		limited, err := a.readLimited()
		if err != nil {
			return err
		}
		questions[i].granted = !limited
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

// readLimited reads the five numbers of an answer, and returns what the first says.
func (a *respAsker) readLimited() (limited bool, err error) {
	for i := range 6 {
		line, err := a.reader.ReadSlice('\n')
		if err != nil {
			return false, err
		}
		line = bytes.TrimSuffix(line, []byte("\r\n"))
		switch {
		case i == 0 && string(line) == "*5":
		case i == 1 && string(line) == ":1":
			limited = true
		case i == 0 || len(line) < 2 || line[0] != ':':
			return false, errors.New("unexpected answer: " + strconv.Quote(string(line)))
		}
	}
	return limited, nil
}

func (a *respAsker) close() { _ = a.conn.Close() }
