package redisstore

import (
	"context"
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/redis/rueidis"
)

// Open connects to the Redis of a URL and returns a store on it, which must be
// closed. Nil options are all defaults. The forms are
//
//	redis://user:password@host:6379/0                  one server
//	rediss://host:6380                                 the same, over TLS
//	unix:///run/redis.sock?db=0                        the same, over a socket
//	redis-sentinel://host:26379,host:26379/master/0    what sentinels call master
//	redis-cluster://host:6379,host:6379                a Cluster
//
// Sentinels and Clusters are reached over TLS with ?tls=true, and sentinels with
// a password of their own with ?sentinel_user=…&sentinel_password=…. For TLS,
// ?ca=… names a file with the certificates to trust, and ?cert=…&key=… files with
// one's own.
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	option, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	tune(ctx, &option, opts)
	dialer := newDialer("tcp")
	if strings.HasPrefix(url, "unix:") {
		dialer = newDialer("unix")
	}
	option.DialCtxFn = dialer.dial
	client, err := rueidis.NewClient(option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, fmt.Errorf("redisstore: connect to %s: %w: %w",
			strings.Join(option.InitAddress, ", "), penstock.ErrUnavailable, err)
	}
	s, err := open(ctx, &builtIn{client: client, sharded: client.Mode() == rueidis.ClientModeCluster}, o)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.close = func() {
		client.Close()
		dialer.close()
	}
	return s, nil
}

// tune sets what the store needs of the client. The client's queues have more
// places than there may be calls, because it does not look at the context while
// it waits for one. It must not repeat anything by itself.
func tune(ctx context.Context, option *rueidis.ClientOption, o Options) {
	option.Dialer.Timeout = connectTimeout
	if at, ok := ctx.Deadline(); ok {
		option.Dialer.Timeout = max(min(time.Until(at), connectTimeout), time.Millisecond)
	}
	option.Dialer.KeepAlive = silence
	option.Sentinel.Dialer = option.Dialer // without it, sentinels get no time at all
	option.ConnWriteTimeout = silence
	option.RingScaleEachConn = max(10, bits.Len(uint(o.MaxCalls)))
	option.ReadBufferEachConn = 1 << 16
	option.WriteBufferEachConn = 1 << 16
	option.DisableCache = true
	option.DisableRetry = true
	option.Sentinel.TopologyRefreshInterval = silence
}

// builtIn is the client that Open brings.
type builtIn struct {
	client  rueidis.Client
	sharded bool
}

func (b *builtIn) Sharded() bool { return b.sharded }

func (b *builtIn) Do(ctx context.Context, calls []Call) {
	if len(calls) == 1 {
		b.read(&calls[0], b.client.Do(ctx, b.command(&calls[0])))
		return
	}
	commands := make(rueidis.Commands, len(calls))
	for i := range calls {
		commands[i] = b.command(&calls[i])
	}
	for i, result := range b.client.DoMulti(ctx, commands...) {
		b.read(&calls[i], result)
	}
}

func (b *builtIn) command(c *Call) rueidis.Completed {
	if c.Text {
		return b.client.B().Eval().Script(c.Script.Text).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
	}
	return b.client.B().Evalsha().Sha1(c.Script.SHA1).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
}

// read puts what came back into a call.
func (b *builtIn) read(c *Call, result rueidis.RedisResult) {
	message, err := result.ToMessage()
	if err != nil {
		c.Err, c.Node = err, b.node(c)
		return
	}
	if n, err := message.AsInt64(); err == nil {
		c.Reply = append(c.Reply, n)
		return
	}
	list, err := message.ToArray()
	for i := range list {
		n, err := list[i].AsInt64()
		if err != nil {
			c.Err, c.Node = err, b.node(c)
			return
		}
		c.Reply = append(c.Reply, n)
	}
	if err != nil {
		c.Err, c.Node = err, b.node(c)
	}
}

// node returns who was asked, as far as the client tells.
func (b *builtIn) node(c *Call) string {
	if b.sharded && len(c.Keys) > 0 {
		return fmt.Sprintf("the node of slot %d", slotOf(c.Keys[0]))
	}
	for address := range b.client.Nodes() {
		return address
	}
	return ""
}

func (b *builtIn) Info(ctx context.Context) (map[string]string, error) {
	infos := map[string]string{}
	for address, node := range b.client.Nodes() {
		text, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", address, err)
		}
		infos[address] = text
		if !b.sharded {
			break // the others are replicas
		}
	}
	return infos, nil
}
