package client_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/penstock-io/penstock/redisstore"
)

// redisClient is a client of redis for all stores of a test. Unlike that of
// redisstore.Open, it does not give a connection up after two seconds of silence, which
// can happen on a starved machine.
type redisClient struct{ rueidis.Client }

func newRedisClient(t *testing.T) redisClient {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{redis.Addr}, DisableCache: true, DisableRetry: true, ConnWriteTimeout: timeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return redisClient{c}
}

func (c redisClient) Sharded() bool { return false }

func (c redisClient) Info(ctx context.Context) (map[string]string, error) {
	text, err := c.Client.Do(ctx, c.B().Info().Build()).ToString()
	return map[string]string{redis.Addr: text}, err
}

func (c redisClient) Do(ctx context.Context, calls []redisstore.Call) {
	commands := make([]rueidis.Completed, len(calls))
	for i, call := range calls {
		command, script := "EVALSHA", call.Script.SHA1
		if call.Text {
			command, script = "EVAL", call.Script.Text
		}
		commands[i] = c.B().Arbitrary(command, script, strconv.Itoa(len(call.Keys))).Keys(call.Keys...).Args(call.Args...).Build()
	}
	for i, result := range c.DoMulti(ctx, commands...) {
		calls[i].Reply, calls[i].Err = appendReply(calls[i].Reply, result)
	}
}

// appendReply appends the integer of a reply, or the integers of an array.
func appendReply(reply []int64, result rueidis.RedisResult) ([]int64, error) {
	m, err := result.ToMessage()
	if err != nil {
		return reply, withCode(err)
	}
	if m.IsInt64() {
		n, err := m.AsInt64()
		return append(reply, n), err
	}
	list, err := m.AsIntSlice()
	return append(reply, list...), err
}

// withCode returns an error of Redis with ERR in front if it has no code.
func withCode(err error) error {
	var redisErr *rueidis.RedisError
	code, _, _ := strings.Cut(err.Error(), " ")
	if errors.As(err, &redisErr) && strings.ToUpper(code) != code {
		return fmt.Errorf("ERR %w", err)
	}
	return err
}
