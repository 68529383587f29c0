package redisstore

import (
	"context"
	"math/bits"
	"strings"
	"time"

	"github.com/penstock-io/penstock/redisstore/internal/dialer"
	"github.com/redis/rueidis"
)

// Open connects to the Redis of a URL and returns a store on it, which must be
// closed. Nil options mean defaults. The forms are
//
//	redis://user:password@host:6379/0                  one server, database 0
//	rediss://host:6380                                 the same, over TLS
//	unix:///run/redis.sock?db=0                        the same, over a socket
//	redis-sentinel://host:26379,host:26379/master/0    the master of that name
//	redis-cluster://host:6379,host:6379                a Cluster
//
// Parts that have a default may be left out, as in redis://. In a user or password,
// the characters : / ? # @ % are percent-encoded, such as p%40ss for p@ss.
//
// Sentinels and Clusters are reached over TLS with ?tls=true. Sentinels with their own
// credentials need ?sentinel_user=…&sentinel_password=…. For TLS, ?ca=… names a file with
// the certificates to trust, ?cert=…&key=… name the files of a client certificate, and
// ?verify_hostname=false accepts a server's certificate of any name.
//
// Open takes at most five seconds, or until ctx ends. It fails if Redis is
// unavailable, unless Options.AllowUnavailable is set, and with a [RefusedError] if the server refuses
// the store's scripts, is too old, or is a Cluster and the URL is not. See [Store.Warnings] for findings that do not
// make it fail. It loads the scripts, so that the first call is as fast as later ones.
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	option, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	network := "tcp"
	if strings.HasPrefix(url, "unix:") {
		network = "unix"
	}
	connections := dialer.New(network, opts.connectTimeout)
	tune(&option, opts)
	option.DialCtxFn = connections.Dial
	rc := newRueidisClient(option, connections, opts.connectTimeout)
	rc.unanswered = newUnansweredCalls(1<<option.RingScaleEachConn, opts)
	s := newStore(rc, opts)
	rc.inspect, rc.probe, rc.replaced = s.inspect, s.firstProbe, s.forgetSpread
	connections.OnReplaced = s.forgetSpread
	s.close = func() {
		rc.close()
		connections.Close()
	}
	if err = rc.open(ctx); err != nil && !(opts.AllowUnavailable && isTransient(err)) {
		s.close()
		return nil, err
	}
	return s, nil
}

// tune sets the options of rueidis that the store depends on. Its queues are
// longer than MaxCalls, because rueidis ignores the context while a queue is
// full. It must not retry, and follows only a few redirections: roundTrip repeats
// calls, with pauses.
func tune(option *rueidis.ClientOption, o Options) {
	option.Dialer.Timeout = o.connectTimeout
	if option.Sentinel.MasterSet != "" { // sentinels are tried one after the other
		option.Dialer.Timeout = max(o.connectTimeout/time.Duration(len(option.InitAddress)), minConnTimeout)
	}
	option.Dialer.KeepAlive = o.connTimeout
	option.Sentinel.Dialer = option.Dialer // the default has a timeout of zero
	option.ConnWriteTimeout = o.connTimeout
	option.AlwaysPipelining = o.pipelineAll
	option.RingScaleEachConn = max(10, bits.Len(uint(o.MaxCalls)))
	option.ReadBufferEachConn = 1 << 16
	option.WriteBufferEachConn = 1 << 16
	option.DisableCache = true
	option.DisableRetry = true
	option.Sentinel.TopologyRefreshInterval = minConnTimeout
	option.ClusterOption.MaxMovedRedirections = 4
	if isCluster(option) {
		option.MaxFlushDelay = maxFlushDelay
	}
}

// maxFlushDelay is how long a connection to a Cluster waits after it has sent calls, if
// there are others in flight, so that the next ones are sent together. Calls for several slots
// cannot share a script, and sending each alone costs the kernel and the node more than the
// script. A call that is alone on its connection does not wait.
const maxFlushDelay = 100 * time.Microsecond

// isCluster reports whether the options are those of a Cluster.
func isCluster(option *rueidis.ClientOption) bool {
	return !option.ForceSingleClient && option.Sentinel.MasterSet == ""
}
