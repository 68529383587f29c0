//go:build unix

package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-io/penstock/server"
)

// A queuedClient sends one request on a connection that the server has not accepted yet,
// and reads the response later.
type queuedClient struct {
	listener string
	conn     net.Conn
	send     func(io.Writer) error
	receive  func(io.Reader) error
}

// queuedPerListener is smaller over TLS: handshakes take a busy machine long, and the server
// gives a client five seconds from its connection to its request.
func queuedPerListener(secure bool) int {
	if secure {
		return 4
	}
	return 20
}

// shutdownTimeout is for the whole test: how long handshakes take depends on the machine.
const shutdownTimeout = 10 * time.Minute

// The clients connect before the server accepts anything, so all of them are in the accept
// queues, requests sent, when the shutdown begins.
func TestServerShutdownAnswersQueuedConnections(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "plaintext", true: "tls"}[secure], func(t *testing.T) {
			t.Parallel()
			settings := map[string]string{}
			if secure {
				a := newAuthority(t)
				a.sign("server", "server")
				settings = tlsSettings(a, false)
			}
			settings["rules"], settings["shutdown-grace"] = writeRules(t, shopRules), shutdownTimeout.String()
			s, err := server.New(t.Context(), load(t, settings), nil)
			if err != nil {
				t.Fatal(err)
			}
			clients := queueClients(t, s, secure)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
			for i, c := range clients {
				if err := <-c; err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
}

// queueClients connects clients to all listeners. Each result comes when the client is done.
func queueClients(t *testing.T, s *server.Server, secure bool) (results []<-chan error) {
	t.Helper()
	for range queuedPerListener(secure) {
		for _, c := range []queuedClient{
			{listener: "grpc", send: sendGRPC, receive: receiveGRPC},
			{listener: "http", send: sendHTTP, receive: receiveHTTP},
			{listener: "resp", send: sendRESP, receive: receiveRESP},
			{listener: "admin", send: sendHTTP, receive: receiveHTTP},
		} {
			c.connect(t, s, secure)
			results = append(results, c.start())
		}
	}
	return results
}

func (c *queuedClient) connect(t *testing.T, s *server.Server, secure bool) {
	t.Helper()
	tcp, err := net.Dial("tcp", s.Addr(c.listener).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tcp.Close() })
	if err := tcp.SetDeadline(time.Now().Add(shutdownTimeout)); err != nil {
		t.Fatal(err)
	}
	c.conn = tcp
	if secure {
		c.conn = tls.Client(tcp, &tls.Config{InsecureSkipVerify: true, NextProtos: map[string][]string{"grpc": {"h2"}}[c.listener]})
		return
	}
	if err := c.send(tcp); err != nil {
		t.Fatal(err)
	}
}

// start reads the response. Over TLS, the handshake comes first.
func (c *queuedClient) start() <-chan error {
	result := make(chan error, 1)
	go func() {
		var err error
		if _, secure := c.conn.(*tls.Conn); secure {
			err = c.send(c.conn)
		}
		if err == nil {
			err = c.receive(c.conn)
		}
		_ = c.conn.Close() // or else the server waits for its acknowledgements
		if err != nil {
			err = fmt.Errorf("%s: %w", c.listener, err)
		}
		result <- err
	}()
	return result
}

func sendHTTP(w io.Writer) error {
	_, err := io.WriteString(w, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	return err
}

func receiveHTTP(r io.Reader) error {
	answer, err := http.ReadResponse(bufio.NewReader(r), nil)
	if err != nil {
		return err
	}
	return answer.Body.Close() // any status is an answer
}

func sendRESP(w io.Writer) error {
	_, err := io.WriteString(w, "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$3\r\n999\r\n$1\r\n1\r\n$4\r\n3600\r\n")
	return err
}

func receiveRESP(r io.Reader) error {
	line, err := bufio.NewReader(r).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "*5") {
		err = fmt.Errorf("got %q", line)
	}
	return err
}

// sendGRPC sends the call together with the connection preface, as Envoy does.
func sendGRPC(w io.Writer) error {
	message, err := proto.Marshal(&envoyrls.RateLimitRequest{
		Domain: "shop",
		Descriptors: []*envoyratelimit.RateLimitDescriptor{{
			Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: "user", Value: "42"}},
		}},
	})
	if err != nil {
		return err
	}
	var out, headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
		{":authority", "localhost"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return err
		}
	}
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	data := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	for _, err := range []error{
		f.WriteSettings(),
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true}),
		f.WriteData(1, true, append(data, message...)),
	} {
		if err != nil {
			return err
		}
	}
	_, err = w.Write(out.Bytes())
	return err
}

// receiveGRPC waits for the response message, and answers pings until then.
func receiveGRPC(rw io.Reader) error {
	f := http2.NewFramer(rw.(io.Writer), rw)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = f.WritePing(true, frame.Data)
			}
		case *http2.DataFrame:
			return nil
		case *http2.RSTStreamFrame:
			return fmt.Errorf("reset: %v", frame.ErrCode)
		}
		if err != nil {
			return err
		}
	}
}
