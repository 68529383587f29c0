package redisstore

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"

	"github.com/redis/rueidis"
)

// The handshakes, in the order in which they are tried. Proxies refuse HELLO, accept it only for RESP2, answer
// something else, or close the connection.
const (
	byRESP3 = iota
	byRESP2
	withoutHello
)

// connectByHandshake connects by the handshake that was accepted last, or the next one that is. Its error is that
// of the first.
func (rc *rueidisClient) connectByHandshake(ctx context.Context) (_ rueidis.Client, failed error) {
	for h := rc.handshake.Load(); h <= withoutHello; h++ {
		client, err := connect(ctx, rc.optionFor(h))
		if err == nil {
			rc.handshake.Store(h)
			return client, nil
		}
		if failed == nil {
			failed = err
		}
		if !handshakeFailed(err) {
			break
		}
	}
	rc.handshake.Store(byRESP3)
	return nil, failed
}

func (rc *rueidisClient) optionFor(handshake int32) rueidis.ClientOption {
	option := rc.option
	option.AlwaysRESP2 = handshake >= byRESP2
	if handshake == withoutHello {
		option.ClientSetInfo = rueidis.DisableClientSetInfo
		option.DialCtxFn = rc.connections.DialWithoutHello
	}
	return option
}

// handshakeFailed reports whether a server can be connected to, but does not accept the handshake. Another one does not help
// if the server accepts none for now, or not the password.
func handshakeFailed(err error) bool {
	if reply, ok := errors.AsType[*rueidis.RedisError](err); ok {
		text := withCode(reply)
		return rejectionCode(text) == "" && !isPassing(text.Error()) && !strings.HasPrefix(text.Error(), "WRONGPASS")
	}
	return hungUp(err) || rueidis.IsParseErr(err)
}

// hungUp reports whether the server has closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
