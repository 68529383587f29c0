package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore/internal/dialer"
	"github.com/redis/rueidis"
)

// A rueidisClient is the client that Open creates.
type rueidisClient struct {
	reconnector
	option      rueidis.ClientOption
	connections *dialer.Dialer
	timeout     time.Duration // of connecting
	inspect     func(infos map[string]string) error
	probe       func(ctx context.Context, do func(context.Context, []Call)) error
	replaced    func()                // called before calls go to another server
	inspected   atomic.Bool           // whether servers were inspected
	handshake   atomic.Int32          // the one that the server accepts
	noInfo      atomic.Bool           // whether the server closes a connection that asks for INFO
	failure     atomic.Pointer[error] // of the last failed attempt to connect
	sharded     atomic.Bool
	slotMap     slotMap
	unanswered  *unansweredCalls
}

// newRueidisClient returns a client that is not connected yet.
func newRueidisClient(option rueidis.ClientOption, connections *dialer.Dialer, timeout time.Duration) *rueidisClient {
	rc := &rueidisClient{option: option, connections: connections, timeout: timeout}
	rc.sharded.Store(isCluster(&option))
	rc.backoff = minReconnectGap
	rc.connect = func() (rueidis.Client, error) { return rc.connectAndInspect(context.Background()) }
	rc.current.Store(&session{})
	return rc
}

// open connects for the first time.
func (rc *rueidisClient) open(ctx context.Context) error {
	client, err := rc.connectAndInspect(ctx)
	if err != nil {
		return fmt.Errorf("redisstore: %w: %w", penstock.ErrUnavailable, err)
	}
	rc.current.Store(&session{client: client})
	return nil
}

// connectAndInspect connects, and inspects the servers unless that was done before.
func (rc *rueidisClient) connectAndInspect(ctx context.Context) (rueidis.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, rc.timeout)
	defer cancel()
	client, err := rc.connectByHandshake(ctx)
	switch {
	case err != nil:
	case rc.inspected.Load():
		rc.replaced()
	default:
		err = rc.inspectServers(ctx, client)
	}
	if err != nil {
		if refused := refusalOf(withCode(err), rc.Sharded()); refused != nil {
			err = refused
		}
		err = fmt.Errorf("connect to %s: %w", strings.Join(rc.option.InitAddress, ", "), err)
		rc.failure.Store(&err)
	}
	return client, err
}

// connect makes a rueidis client, and waits for it until ctx ends: NewClient takes
// no context.
func connect(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	type result struct {
		client rueidis.Client
		err    error
	}
	made := make(chan result, 1)
	option.InitAddress = slices.Clone(option.InitAddress) // rueidis shuffles it, and it may be read meanwhile
	go func() {
		client, err := rueidis.NewClient(option)
		if err != nil && client != nil {
			client.Close()
		}
		made <- result{client, err}
	}()
	select {
	case r := <-made:
		return r.client, r.err
	case <-ctx.Done():
		go func() {
			if r := <-made; r.err == nil {
				r.client.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// inspectServers inspects and probes the servers, and closes the client if one is not
// supported.
func (rc *rueidisClient) inspectServers(ctx context.Context, client rueidis.Client) error {
	rc.sharded.Store(client.Mode() == rueidis.ClientModeCluster)
	infos, err := rc.infoOf(ctx, client)
	if err == nil {
		err = rc.inspect(infos)
	}
	if err == nil && !rc.noInfo.Load() {
		rc.loadScripts(ctx, client)
	}
	if err == nil {
		s := &session{client: client}
		err = rc.probe(ctx, func(ctx context.Context, calls []Call) { rc.doOn(ctx, s, calls) })
	}
	if err != nil {
		client.Close()
		return err
	}
	rc.inspected.Store(true)
	return nil
}

// loadScripts loads the scripts on every node, so that the first take of a kind is not
// slower than the rest: otherwise it sends the script's text after a NOSCRIPT error. A
// node without them gets them that way too, so errors are ignored: the user may lack the
// permission, or a node of a Cluster is down. Redis may evict a script that came with
// EVAL, and does not evict a loaded one.
func (rc *rueidisClient) loadScripts(ctx context.Context, client rueidis.Client) {
	var wg sync.WaitGroup
	for _, node := range client.Nodes() {
		wg.Go(func() {
			scripts := commonScripts()
			commands := make(rueidis.Commands, len(scripts))
			for i, script := range scripts {
				commands[i] = node.B().ScriptLoad().Script(script.Text).Build()
			}
			node.DoMulti(ctx, commands...)
		})
	}
	wg.Wait()
}

func (rc *rueidisClient) Sharded() bool { return rc.sharded.Load() }

func (rc *rueidisClient) Do(ctx context.Context, calls []Call) {
	if rc.connections.Connecting() || rc.unanswered.mayFillQueue() {
		rc.doInBackground(ctx, calls)
	} else {
		rc.do(ctx, calls)
	}
	if ctx.Err() != nil && anyCall(calls, func(c *Call) bool { return !c.answered() }) {
		rc.unanswered.add()
	}
}

// doInBackground makes calls that may have to wait for a connection that another caller is
// opening, or for room in the queue of one. rueidis ignores their context meanwhile, so they wait
// in a goroutine. What still waits for a connection when ctx ends is not sent: rueidis looks at ctx
// first. What waits for room is sent only if the server answers again.
func (rc *rueidisClient) doInBackground(ctx context.Context, calls []Call) {
	own := slices.Clone(calls) // the caller may leave first
	for i := range own {
		own[i].Reply = nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		rc.do(ctx, own)
	}()
	select {
	case <-done:
		for i := range calls {
			c := &calls[i]
			c.Reply, c.Err, c.Node, c.texts = append(c.Reply, own[i].Reply...), own[i].Err, own[i].Node, own[i].texts
		}
	case <-ctx.Done():
		s := rc.current.Load()
		for i := range calls {
			if calls[i].Err = ctx.Err(); s != nil && s.client != nil {
				calls[i].Node = rc.nodeOf(s, &calls[i])
			}
		}
	}
}

func (rc *rueidisClient) do(ctx context.Context, calls []Call) {
	s := rc.use()
	if s != nil {
		defer s.release()
	}
	if s == nil || s.client == nil {
		err := rc.notConnected(s)
		for i := range calls {
			calls[i].Err = err
		}
		return
	}
	rc.doOn(ctx, s, calls)
}

// doOn makes calls on a session.
func (rc *rueidisClient) doOn(ctx context.Context, s *session, calls []Call) {
	build := s.client.B()
	if len(calls) == 1 {
		rc.readReply(ctx, s, &calls[0], s.client.Do(ctx, command(build, &calls[0])))
		return
	}
	commands := make(rueidis.Commands, len(calls))
	for i := range calls {
		commands[i] = command(build, &calls[i])
	}
	for i, result := range s.client.DoMulti(ctx, commands...) {
		rc.readReply(ctx, s, &calls[i], result)
	}
}

// notConnected returns why there is no connection, and triggers another attempt.
// The error is not ErrNotSent, because a retry would fail as well.
func (rc *rueidisClient) notConnected(s *session) error {
	if s == nil {
		return errClosed
	}
	rc.reconnect(s)
	failure := *rc.failure.Load()
	if refused := refusalOf(failure, rc.Sharded()); refused != nil {
		return fmt.Errorf("not connected: %w", refused)
	}
	return errors.New("not connected: " + failure.Error())
}

func command(build rueidis.Builder, c *Call) rueidis.Completed {
	if c.Text {
		return build.Eval().Script(c.Script.Text).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
	}
	return build.Evalsha().Sha1(c.Script.SHA1).Numkeys(int64(len(c.Keys))).Key(c.Keys...).Arg(c.Args...).Build()
}

// readReply stores a result in a call. In a Cluster, a call that could not be sent
// is tried on other nodes first.
func (rc *rueidisClient) readReply(ctx context.Context, s *session, c *Call, result rueidis.RedisResult) {
	message, err := result.ToMessage()
	if err != nil {
		if !notSent(err) || !rc.Sharded() || !rc.askOtherNodes(ctx, s, c) {
			rc.setError(ctx, s, c, err)
		}
		return
	}
	if c.wantTexts {
		rc.readTexts(ctx, s, c, &message)
		return
	}
	if n, err := wholeNumber(&message); err == nil {
		c.Reply = append(c.Reply, n)
		return
	}
	list, err := message.ToArray()
	for i := range list {
		var n int64
		if n, err = wholeNumber(&list[i]); err != nil {
			break
		}
		c.Reply = append(c.Reply, n)
	}
	if err != nil { // the server has answered, but not as a script does
		rc.setError(ctx, s, c, fmt.Errorf("ERR unexpected reply: %w", err))
	}
}

// wholeNumber returns an integer. Servers with another Lua return some of them as doubles.
func wholeNumber(m *rueidis.RedisMessage) (int64, error) {
	n, err := m.AsInt64()
	if err != nil {
		if f, isFloat := m.AsFloat64(); isFloat == nil && f == math.Trunc(f) && math.Abs(f) <= 1<<53 {
			return int64(f), nil
		}
	}
	return n, err
}

// readTexts stores a reply of strings in a call.
func (rc *rueidisClient) readTexts(ctx context.Context, s *session, c *Call, message *rueidis.RedisMessage) {
	list, err := message.ToArray()
	texts := make([]string, len(list))
	for i := range list {
		if n, isInt := list[i].AsInt64(); list[i].IsInt64() && isInt == nil {
			texts[i] = strconv.FormatInt(n, 10)
		} else if texts[i], err = list[i].ToString(); err != nil {
			break
		}
	}
	if err != nil {
		rc.setError(ctx, s, c, err)
		return
	}
	c.texts = texts
}

// setError stores an error in a call. If the server has become a replica, it
// reconnects, because the address may belong to another server by now. A Cluster
// needs no reconnect: its replicas redirect calls to their primaries.
func (rc *rueidisClient) setError(ctx context.Context, s *session, c *Call, err error) {
	c.Err, c.Node = rc.translateError(ctx, err), rc.nodeOf(s, c)
	if code := rejectionCode(err); !rc.Sharded() && (code == "READONLY" || code == "MASTERDOWN") {
		rc.reconnect(s)
	}
}

// translateError turns an error of rueidis into one that retryable understands.
func (rc *rueidisClient) translateError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, rueidis.ErrClosing) && rc.current.Load() == nil:
		return errClosed
	case errors.Is(err, rueidis.ErrClosing) && rc.neverWritten(ctx), errors.Is(err, rueidis.ErrNoSlot),
		errors.Is(err, context.Canceled) && ctx.Err() == nil: // of the caller that was opening the connection for others, too
		return fmt.Errorf("%w: %w", dialer.ErrNotSent, err)
	}
	return withCode(err)
}

// withCode returns a reply of Redis with a code in front. rueidis removes ERR, and a command denied to a
// script has none.
func withCode(err error) error {
	if reply, ok := errors.AsType[*rueidis.RedisError](err); ok && !isReply(reply) {
		return fmt.Errorf("ERR %w", reply)
	}
	return err
}

// neverWritten reports whether a call on a rueidis client that is being closed was
// certainly not sent. rueidis returns ErrClosing both to calls that come too late and
// to calls whose reply is lost; the latter were written to a connection that is closed
// by now.
func (rc *rueidisClient) neverWritten(ctx context.Context) bool {
	d, ok := ctx.(*deadline)
	return ok && !rc.connections.LostWriteSince(d.sentAt)
}

// nodeOf returns the address of the node that was called, if known.
func (rc *rueidisClient) nodeOf(s *session, c *Call) string {
	if rc.Sharded() && len(c.Keys) > 0 {
		return rc.slotMap.describe(s.client, slotOf(c.Keys[0]))
	}
	for address := range s.client.Nodes() {
		return address
	}
	return ""
}

func (rc *rueidisClient) Info(ctx context.Context) (map[string]string, error) {
	s := rc.current.Load()
	if s == nil || s.client == nil {
		return nil, rc.notConnected(s)
	}
	return rc.infoOf(ctx, s.client)
}

func (rc *rueidisClient) infoOf(ctx context.Context, client rueidis.Client) (map[string]string, error) {
	if rc.Sharded() {
		rc.slotMap.load(ctx, client)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	infos, answered := map[string]string{}, 0
	for address, node := range client.Nodes() {
		wg.Go(func() {
			text, err := rc.askInfo(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			if infos[address] = text; err == nil {
				answered++
			} else {
				failed = fmt.Errorf("%s: %w", address, err)
			}
		})
	}
	wg.Wait()
	if answered > 0 {
		failed = nil
	}
	return infos, failed
}

// askInfo returns the INFO of a node, or "" if it has none: the user lacks the permission, or a proxy the
// command, which it may also tell by closing the connection.
func (rc *rueidisClient) askInfo(ctx context.Context, node rueidis.Client) (text string, err error) {
	if rc.noInfo.Load() {
		return "", nil
	}
	text, err = node.Do(ctx, node.B().Info().Build()).ToString()
	reply, replied := errors.AsType[*rueidis.RedisError](err)
	switch {
	case replied && rejectionCode(reply) == "", rueidis.IsParseErr(err):
		return "", nil
	case hungUp(err) && !rc.inspected.Load() && node.Do(ctx, node.B().Ping().Build()).Error() == nil:
		rc.noInfo.Store(true)
		return "", nil
	}
	return text, err
}
