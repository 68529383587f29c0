package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/redis/rueidis"
)

// appClient adapts the application's own client. For go-redis there is package
// redisstore/goredis.
type appClient struct{ rueidis.Client }

func (c appClient) Do(ctx context.Context, calls []redisstore.Call) {
	commands := make(rueidis.Commands, len(calls))
	for i, call := range calls {
		command, script := "EVALSHA", call.Script.SHA1
		if call.Text {
			command, script = "EVAL", call.Script.Text
		}
		commands[i] = c.B().Arbitrary(command, script, fmt.Sprint(len(call.Keys))).Keys(call.Keys...).Args(call.Args...).Build()
	}
	for i, result := range c.DoMulti(ctx, commands...) {
		if n, err := result.AsInt64(); err == nil {
			calls[i].Reply = append(calls[i].Reply, n)
			continue
		}
		list, err := result.AsIntSlice()
		calls[i].Reply, calls[i].Err = append(calls[i].Reply, list...), err
	}
}

func (c appClient) Info(ctx context.Context) (map[string]string, error) {
	text, err := c.Client.Do(ctx, c.B().Info().Build()).ToString()
	return map[string]string{"redis": text}, err
}

func (c appClient) Sharded() bool { return false }

// A program with its own client adapts it with three methods and passes it to New.
func ExampleNew() {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:  []string{liveServer.Addr}, // such as localhost:6379
		DisableRetry: true,                      // the store decides what to retry
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	store, err := redisstore.New(appClient{client}, &redisstore.Options{Prefix: "own", Timeout: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}

	lim, err := penstock.New(store, penstock.PerMinute(30).WithBurst(15))
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := lim.Allow(context.Background(), "user:42")
	fmt.Println(d.Allowed, d.Limit, err)
	// Output: true 15 <nil>
}
