package redisstore

import (
	"context"

	"github.com/redis/rueidis"
)

// maxOtherNodes is how many other nodes are asked who has taken a node's place.
const maxOtherNodes = 3

// askOtherNodes has a call made by way of another node of a Cluster, because the one that is
// thought to own its slot is not there. The others know at once who has taken its
// place; the client finds out at its leisure, within a second. It reports whether
// somebody has answered, or may have.
func (b *rueidisClient) askOtherNodes(ctx context.Context, s *session, c *Call) bool {
	nodes := s.client.Nodes()
	asked := 0
	for _, node := range nodes {
		if asked++; asked > maxOtherNodes {
			break
		}
		result := node.Do(ctx, command(node.B(), c))
		if next := nodes[movedAddress(result.Error())]; next != nil {
			result = next.Do(ctx, command(next.B(), c))
		}
		if err := result.Error(); err == nil || rejectionCode(err) == "" || rejectionCode(err) == "NOSCRIPT" {
			b.readReply(ctx, s, c, result)
			return true
		}
	}
	return false
}

// movedAddress returns where a node sends a caller, or nothing.
func movedAddress(err error) string {
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		address, _ := refusal.IsMoved()
		return address
	}
	return ""
}
