package regions

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/redisstore"
)

// RedisPools returns the pools of a region on its Redis, one hash PREFIX:pool:KEY for each key of each
// limit. A call ends after the timeout at the latest; 0 means 50 milliseconds. The user of Redis needs the commands
// time, hmget, hset, hincrby and pexpire. A store on a client of the program's own returns [errors.ErrUnsupported].
func RedisPools(s *redisstore.Store, timeout time.Duration) Pools {
	return redisPools{s, defaults.Or(timeout, defaultPoolTimeout)}
}

const defaultPoolTimeout = 50 * time.Millisecond

type redisPools struct {
	store   *redisstore.Store
	timeout time.Duration
}

var (
	//go:embed spend.lua
	spendText string
	//go:embed deposit.lua
	depositText string

	spendScript   = redisstore.NewScript("spend", spendText)
	depositScript = redisstore.NewScript("deposit", depositText)
)

func (p redisPools) Spend(ctx context.Context, key string, a Ask) (s Spent, err error) {
	reply, err := p.eval(ctx, spendScript, 10, key,
		decimal(a.Cost), bit(a.AtMost), decimal(a.Hold), millis(a.Age), a.Claim, millis(a.ClaimFor), bit(a.Dry), millis(a.Trip), millis(a.Keep))
	if err != nil {
		return s, err
	}
	return Spent{
		Granted: reply[0], Left: reply[1], Want: reply[2], At: time.Duration(reply[3]) * time.Millisecond,
		Scarce: reply[4] == 1, Asked: reply[5] == 1, Wait: time.Duration(reply[6]) * time.Millisecond,
		HomeLeft: reply[7], HomeReset: time.Duration(reply[8]) * time.Millisecond, Age: time.Duration(reply[9]) * time.Millisecond,
	}, nil
}

func (p redisPools) Deposit(ctx context.Context, key string, l Lot) (bool, error) {
	reply, err := p.eval(ctx, depositScript, 1, key,
		l.Claim, decimal(l.Units), millis(l.End), bit(l.Scarce), millis(l.Pause), decimal(l.HomeLeft), millis(l.HomeReset))
	return err == nil && reply[0] == 1, err
}

// eval runs a script on a pool, and returns the integers of its reply.
func (p redisPools) eval(ctx context.Context, script *redisstore.Script, want int, key string, args ...string) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	texts, err := p.store.Eval(ctx, script, "pool:"+key, args...)
	if err != nil {
		return nil, err
	}
	if len(texts) != want {
		return nil, fmt.Errorf("regions: %s: %w: reply of %d fields, want %d", script.Name, penstock.ErrUnavailable, len(texts), want)
	}
	reply := make([]int64, want)
	for i, text := range texts {
		if reply[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("regions: %s: %w: %w", script.Name, penstock.ErrUnavailable, err)
		}
	}
	return reply, nil
}

func decimal(n int64) string        { return strconv.FormatInt(n, 10) }
func millis(d time.Duration) string { return decimal(d.Milliseconds()) }

func bit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}
