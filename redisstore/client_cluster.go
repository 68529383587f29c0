package redisstore

import (
	"context"

	"github.com/redis/rueidis"
)

// mostAsked is how many other nodes are asked who has taken a node's place.
const mostAsked = 3

// detour has a call made by way of another node of a Cluster, because the one that is
// thought to own its slot is not there. The others know at once who has taken its
// place; the client finds out at its leisure, within a second. It reports whether
// somebody has answered, or may have.
func (b *builtIn) detour(ctx context.Context, s *session, c *Call) bool {
	nodes := s.client.Nodes()
	asked := 0
	for _, node := range nodes {
		if asked++; asked > mostAsked {
			break
		}
		result := node.Do(ctx, command(node.B(), c))
		if next := nodes[movedTo(result.Error())]; next != nil {
			result = next.Do(ctx, command(next.B(), c))
		}
		if err := result.Error(); err == nil || refused(err) == "" || refused(err) == "NOSCRIPT" {
			b.read(ctx, s, c, result)
			return true
		}
	}
	return false
}

// movedTo returns where a node sends a caller, or nothing.
func movedTo(err error) string {
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		address, _ := refusal.IsMoved()
		return address
	}
	return ""
}
