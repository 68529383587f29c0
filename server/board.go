package server

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/observe"
)

// A redisBoard keeps the summaries of daemons in Redis: each under a key of its own that
// expires, and all names in one sorted set, by the time of the last summary on Redis's
// clock. The keys of a Cluster can be in different slots, so each script has one key.
type redisBoard struct{ redis *redisstore.Store }

const (
	boardList    = "daemons"
	boardSummary = "daemon/" // and the name
)

var (
	putSummary = redisstore.NewScript("put summary", `
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {}`)

	listDaemon = redisstore.NewScript("list daemon", `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {redis.call('ZCOUNT', KEYS[1], now - ARGV[4], '+inf')}`)

	// Names that are too long are none of ours.
	daemonList = redisstore.NewScript("daemon list", `
local list = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
local reply = {}
for i = 1, #list, 2 do
  if #list[i] <= tonumber(ARGV[2]) then
    reply[#reply + 1] = list[i]
    reply[#reply + 1] = list[i + 1]
  end
end
return reply`)

	// One byte more than allowed shows that a summary is too long.
	getSummary = redisstore.NewScript("get summary", `
return {redis.call('GETRANGE', KEYS[1], 0, ARGV[1])}`)

	removeSummary = redisstore.NewScript("remove summary", `
redis.call('DEL', KEYS[1])
return {}`)

	unlistDaemon = redisstore.NewScript("unlist daemon", `
redis.call('ZREM', KEYS[1], ARGV[1])
return {}`)
)

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Put implements [observe.Board].
func (b redisBoard) Put(ctx context.Context, daemon string, summary []byte) (daemons int, err error) {
	_, err = b.redis.Eval(ctx, putSummary, boardSummary+daemon, string(summary), milliseconds(observe.SummaryExpiry))
	if err != nil {
		return 0, err
	}
	reply, err := b.redis.Eval(ctx, listDaemon, boardList, daemon,
		milliseconds(observe.ForgetMissing), strconv.Itoa(observe.MaxDaemons), milliseconds(observe.SummaryExpiry))
	if err != nil || len(reply) != 1 {
		return 0, err
	}
	return strconv.Atoi(reply[0])
}

// Remove implements [observe.Board].
func (b redisBoard) Remove(ctx context.Context, daemon string) error {
	_, err := b.redis.Eval(ctx, unlistDaemon, boardList, daemon)
	if err == nil {
		_, err = b.redis.Eval(ctx, removeSummary, boardSummary+daemon)
	}
	return err
}

// Notices implements [observe.Board].
func (b redisBoard) Notices(ctx context.Context) ([]observe.Notice, error) {
	list, err := b.redis.Eval(ctx, daemonList, boardList, strconv.Itoa(observe.MaxDaemons), strconv.Itoa(observe.MaxDaemonName))
	if err != nil {
		return nil, err
	}
	notices := make([]observe.Notice, len(list)/2)
	for i := range notices {
		score, _ := strconv.ParseFloat(list[2*i+1], 64)
		notices[i] = observe.Notice{Daemon: list[2*i], Updated: time.UnixMilli(int64(score))}
	}
	return notices, b.readSummaries(ctx, notices)
}

// boardReads is how many summaries are read at the same time.
const boardReads = 8

// readSummaries reads the summaries of daemons. A daemon without one is missing.
func (b redisBoard) readSummaries(ctx context.Context, notices []observe.Notice) error {
	errs := make([]error, boardReads)
	var reading sync.WaitGroup
	for worker := range boardReads {
		reading.Go(func() {
			for i := worker; i < len(notices) && errs[worker] == nil; i += boardReads {
				errs[worker] = b.readSummary(ctx, &notices[i])
			}
		})
	}
	reading.Wait()
	return errors.Join(errs...)
}

func (b redisBoard) readSummary(ctx context.Context, n *observe.Notice) error {
	reply, err := b.redis.Eval(ctx, getSummary, boardSummary+n.Daemon, strconv.Itoa(observe.MaxSummaryBytes))
	if err == nil && len(reply) == 1 && reply[0] != "" {
		n.Summary = []byte(reply[0])
	}
	return err
}
