package xds

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/durable"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
)

// Options configure a [Client].
type Options struct {
	MergeDomains bool         // let several resources add to one domain
	Data         *durable.Dir // keeps the rules across restarts; nil: they are not kept
	Log          *slog.Logger // nil discards

	// MinBackoff and MaxBackoff are the shortest and the longest time between two attempts to
	// connect. Defaults: 500 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
}

// A Client receives rules. It must be closed. Its methods must not be called concurrently,
// except Connected.
type Client struct {
	config Config
	o      Options
	log    *slog.Logger

	used     content
	rejected *rejection // of the last response; nil if it was accepted
	failures int        // to connect, in a row
	lastErr  string     // which was logged

	connection *connection // nil without one
	connected  atomic.Bool
}

// A content identifies the resources of a response.
type content [sha256.Size]byte

type rejection struct {
	content
	err   error
	times int
}

// New returns a client. It reads the certificates but does not connect yet.
func New(c *Config, o *Options) (*Client, error) {
	client := &Client{config: *c, o: *cmp.Or(o, &Options{})}
	client.log = cmp.Or(client.o.Log, slog.New(slog.DiscardHandler))
	client.o.MinBackoff = defaults.Or(client.o.MinBackoff, 500*time.Millisecond)
	client.o.MaxBackoff = defaults.Or(client.o.MaxBackoff, 30*time.Second)
	_, err := c.credentials()
	return client, err
}

// Connected reports whether there is a stream to the management server.
func (c *Client) Connected() bool { return c.connected.Load() }

// Close closes the connection.
func (c *Client) Close() { c.disconnect() }

// Run receives rules until ctx ends.
func (c *Client) Run(ctx context.Context, use rules.Use) {
	for c.Next(ctx, use) == nil {
	}
	c.disconnect()
}

// Next answers one response of the management server. It connects first if necessary, as often
// as it takes. The error is that of ctx.
func (c *Client) Next(ctx context.Context, use rules.Use) error {
	for ctx.Err() == nil {
		err := c.exchange(ctx, use)
		if err == nil {
			return nil
		}
		c.disconnect()
		if ctx.Err() == nil {
			c.backOff(ctx, err)
		}
	}
	return ctx.Err()
}

// exchange receives a response and answers it.
func (c *Client) exchange(ctx context.Context, use rules.Use) error {
	if c.connection == nil {
		if err := c.connect(ctx); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, c.connection.cancel)()
	if !c.connection.subscribed {
		if err := c.send(&discovery.DiscoveryRequest{}); err != nil {
			return err
		}
		c.connection.subscribed = true
	}
	response, err := c.connection.stream.Recv()
	if err != nil {
		return err
	}
	if response.GetTypeUrl() != TypeURL {
		return fmt.Errorf("response has type %.200q, which was not asked for", response.GetTypeUrl())
	}
	if c.lastErr != "" {
		c.log.Info("rules: connected to the xDS server", "addr", c.config.Addr)
	}
	c.failures, c.lastErr = 0, ""
	return c.answer(ctx, response, use)
}

// answer accepts or rejects a response.
func (c *Client) answer(ctx context.Context, response *discovery.DiscoveryResponse, use rules.Use) error {
	err := c.load(ctx, response, use)
	request := &discovery.DiscoveryRequest{VersionInfo: response.GetVersionInfo(), ResponseNonce: response.GetNonce()}
	if err != nil {
		request.VersionInfo = c.connection.version
		request.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: cut(err.Error())}
	}
	c.connection.version = request.GetVersionInfo()
	return c.send(request)
}

// maxErrorText bounds the reason of a rejection.
const maxErrorText = 8 << 10

func cut(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	end := maxErrorText
	for text[end]&0xC0 == 0x80 { // within a character
		end--
	}
	return text[:end] + "…"
}

// load puts the rules of a response in use, unless they are already. Management servers send
// what was rejected again at once, so the second rejection, and each later one, is delayed.
func (c *Client) load(ctx context.Context, response *discovery.DiscoveryResponse, use rules.Use) error {
	id := contentOf(response)
	switch {
	case c.rejected == nil && c.used == id:
		return nil
	case c.rejected != nil && c.rejected.content == id:
		const longest = 5 * time.Second
		_ = monotime.Sleep(ctx, c.delay(c.rejected.times, min(longest, c.o.MaxBackoff)))
		c.rejected.times++
		return c.rejected.err
	}
	if err := c.parseAndUse(response, use); err != nil {
		c.rejected = &rejection{content: id, err: err}
		return err
	}
	c.rejected, c.used = nil, id
	c.save(response)
	return nil
}

func (c *Client) parseAndUse(response *discovery.DiscoveryResponse, use rules.Use) error {
	set, unknown, err := parse(response, c.o.MergeDomains)
	if len(unknown) > 0 {
		c.log.Warn("rules: fields that this version does not know are ignored", "fields", unknown)
	}
	return use(set, err)
}

// contentOf returns the same for the same resources in any order.
func contentOf(response *discovery.DiscoveryResponse) content {
	sums := make([]content, 0, len(response.GetResources()))
	for _, r := range response.GetResources() {
		h := sha256.New()
		h.Write(fmt.Appendf(nil, "%d %s", len(r.GetTypeUrl()), r.GetTypeUrl()))
		h.Write(r.GetValue())
		sums = append(sums, content(h.Sum(nil)))
	}
	slices.SortFunc(sums, func(a, b content) int { return slices.Compare(a[:], b[:]) })
	h := sha256.New()
	h.Write([]byte("resources")) // so that no resources differ from no content
	for _, sum := range sums {
		h.Write(sum[:])
	}
	return content(h.Sum(nil))
}

// backOff waits before the next attempt to connect. An error that repeats is logged once.
func (c *Client) backOff(ctx context.Context, err error) {
	d := c.delay(c.failures, c.o.MaxBackoff)
	c.failures++
	if text := err.Error(); text != c.lastErr {
		c.lastErr = text
		c.log.Warn("rules: no connection to the xDS server, keeping the rules in use", "addr", c.config.Addr, "err", err)
	}
	_ = monotime.Sleep(ctx, d)
}

// delay returns the time to wait after some failures: it doubles, with jitter, so that many
// daemons do not return to a server at once.
func (c *Client) delay(failures int, longest time.Duration) time.Duration {
	d := min(c.o.MinBackoff<<min(failures, 20), longest)
	return d/2 + rand.N(d/2+1)
}

// A connection is a stream, and what was said on it.
type connection struct {
	conn       *grpc.ClientConn
	stream     discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	cancel     context.CancelFunc
	subscribed bool
	version    string // accepted last
}

// connect opens a stream on a new connection, so that renewed certificates are used. A stream
// begins without a version: after its restart a server may use one again for other rules.
func (c *Client) connect(ctx context.Context) error {
	creds, err := c.config.credentials()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(c.config.Addr, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithContextDialer(dial), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(rules.MaxTotalBytes)))
	if err != nil {
		return err
	}
	streaming, cancel := context.WithCancel(metadata.NewOutgoingContext(context.Background(), metadata.New(c.config.Headers)))
	defer context.AfterFunc(ctx, cancel)()
	c.connection = &connection{conn: conn, cancel: cancel}
	c.connection.stream, err = discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(streaming)
	c.connected.Store(err == nil)
	return err
}

// dial connects with TCP's own keepalive, so that a server that vanished is noticed. Those of
// gRPC would have servers close the connection, unless they are minutes apart.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return d.DialContext(ctx, "tcp", addr)
}

func (c *Client) disconnect() {
	if c.connection == nil {
		return
	}
	c.connected.Store(false)
	c.connection.cancel()
	_ = c.connection.conn.Close() // there is nothing to lose
	c.connection = nil
}

func (c *Client) send(request *discovery.DiscoveryRequest) error {
	request.TypeUrl = TypeURL
	request.Node = c.node()
	if err := c.connection.stream.Send(request); err != nil {
		return c.streamError(err)
	}
	return nil
}

// streamError returns why a stream ended: a failed Send does not say.
func (c *Client) streamError(err error) error {
	if _, reason := c.connection.stream.Recv(); reason != nil {
		return reason
	}
	return errors.Join(errors.New("stream ended"), err)
}

func (c *Client) node() *core.Node {
	n := &core.Node{Id: c.config.Node, UserAgentName: "penstock", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}}}
	for name, value := range c.config.Metadata {
		n.Metadata.Fields[name] = structpb.NewStringValue(value)
	}
	return n
}
