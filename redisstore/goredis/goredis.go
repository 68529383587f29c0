// Package goredis lets a [redisstore.Store] use the go-redis client that a program
// already has. It is a separate module, so that other programs need not download
// go-redis.
//
//	client, err := goredis.New(redis.NewClient(&redis.Options{ContextTimeoutEnabled: true}))
//	…
//	store, err := redisstore.New(client, nil)
package goredis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

// New adapts a client for [redisstore.New]. It must be a [*redis.Client], with
// sentinels or without, or a [*redis.ClusterClient], and ContextTimeoutEnabled must
// be set in its options: without it go-redis ignores deadlines and waits for its
// ReadTimeout. Its MaxRetries has no effect here.
//
// Unlike the connections of [redisstore.Open], those of the client are not checked: go-redis allocates as much as the
// server says that a reply is long, so a server that announces two billion elements ends the process.
func New(client redis.UniversalClient) (redisstore.Client, error) {
	timeouts, sharded := false, false
	switch c := client.(type) {
	case *redis.Client:
		timeouts = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		timeouts, sharded = c.Options().ContextTimeoutEnabled, true
	default:
		// A *redis.Ring uses another server while one is down, and that one does
		// not have its state.
		return nil, fmt.Errorf("goredis: a %T: want a *redis.Client or a *redis.ClusterClient", client)
	}
	if !timeouts {
		return nil, errors.New("goredis: ContextTimeoutEnabled is not set: without it calls ignore their deadlines")
	}
	return &adapter{client, sharded}, nil
}

type adapter struct {
	client  redis.UniversalClient
	sharded bool
}

func (a *adapter) Sharded() bool { return a.sharded }

// A script is a command that go-redis must not retry.
type script struct{ *redis.Cmd }

func (script) NoRetry() bool { return true }

func newScript(ctx context.Context, c *redisstore.Call) script {
	args := make([]any, 3, 3+len(c.Keys)+len(c.Args))
	args[0], args[1], args[2] = "evalsha", c.Script.SHA1, len(c.Keys)
	if c.Text {
		args[0], args[1] = "eval", c.Script.Text
	}
	for _, key := range c.Keys {
		args = append(args, key)
	}
	for _, arg := range c.Args {
		args = append(args, arg)
	}
	return script{redis.NewCmd(ctx, args...)}
}

func (a *adapter) Do(ctx context.Context, calls []redisstore.Call) {
	if len(calls) == 1 { // go-redis follows MOVED without a pause only outside pipelines
		s := newScript(ctx, &calls[0])
		_ = a.client.Process(ctx, s)
		a.read(ctx, &calls[0], s)
		return
	}
	pipe, scripts := a.client.Pipeline(), make([]script, len(calls))
	for i := range calls {
		scripts[i] = newScript(ctx, &calls[i])
		_ = pipe.Process(ctx, scripts[i])
	}
	_, _ = pipe.Exec(ctx) // each script has its own error
	for i := range calls {
		a.read(ctx, &calls[i], scripts[i])
	}
}

// read stores a result in a call.
func (a *adapter) read(ctx context.Context, c *redisstore.Call, s script) {
	if n, ok := s.Val().(int64); ok {
		c.Reply = append(c.Reply, n)
		return
	}
	list, err := s.Int64Slice()
	if err != nil {
		c.Err, c.Node = withCode(err), a.node(ctx, c)
	}
	c.Reply = append(c.Reply, list...)
}

// withCode returns an error of Redis with a code in front. A command denied to a script
// has none.
func withCode(err error) error {
	var reply redis.Error
	word, _, _ := strings.Cut(err.Error(), " ")
	if errors.As(err, &reply) && strings.ToUpper(word) != word {
		return fmt.Errorf("ERR %w", err)
	}
	return err
}

// node returns the address of the node that owns a call's keys.
func (a *adapter) node(ctx context.Context, c *redisstore.Call) string {
	client, ok := a.client.(*redis.Client)
	if cluster, sharded := a.client.(*redis.ClusterClient); sharded {
		master, err := cluster.MasterForKey(ctx, c.Keys[0])
		client, ok = master, err == nil
	}
	if !ok {
		return ""
	}
	return client.Options().Addr
}

func (a *adapter) Info(ctx context.Context) (map[string]string, error) {
	var mu sync.Mutex
	infos, answered, failed := map[string]string{}, 0, error(nil)
	ask := func(ctx context.Context, node *redis.Client) error {
		text, err := node.Info(ctx).Result()
		mu.Lock()
		defer mu.Unlock()
		infos[node.Options().Addr] = text
		if err == nil || infoDenied(err) {
			answered++
		} else {
			failed = fmt.Errorf("%s: %w", node.Options().Addr, err)
		}
		return nil
	}
	if cluster, ok := a.client.(*redis.ClusterClient); ok {
		if err := cluster.ForEachMaster(ctx, ask); err != nil {
			return nil, err
		}
	} else {
		_ = ask(ctx, a.client.(*redis.Client))
	}
	if answered > 0 {
		failed = nil
	}
	return infos, failed
}

// infoDenied reports whether a server is up but has no INFO for this user: proxies say so in many words.
func infoDenied(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && !strings.HasPrefix(err.Error(), "LOADING") && !strings.HasPrefix(err.Error(), "BUSY")
}
