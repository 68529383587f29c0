package redisstore

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// maxOtherNodes is the most other nodes that a call is sent to.
const maxOtherNodes = 3

// askOtherNodes sends a call that could not be sent to the owner of its slot to other
// nodes of the Cluster, which redirect it to the new owner as soon as there is one;
// rueidis itself may need a second to find out. It reports whether the call got a
// result: a reply, or an error after which it may have been executed.
func (rc *rueidisClient) askOtherNodes(ctx context.Context, s *session, c *Call) bool {
	nodes := s.client.Nodes()
	tried := 0
	for _, node := range nodes {
		if tried++; tried > maxOtherNodes {
			break
		}
		result := node.Do(ctx, command(node.B(), c))
		if owner := nodes[movedAddress(result.Error())]; owner != nil {
			result = owner.Do(ctx, command(owner.B(), c))
		}
		if err := result.Error(); err == nil || !notExecuted(err) || rejectionCode(err) == "NOSCRIPT" {
			rc.readReply(ctx, s, c, result)
			return true
		}
	}
	return false
}

// movedAddress returns the address in a MOVED error, or "".
func movedAddress(err error) string {
	if reply, ok := rueidis.IsRedisErr(err); ok {
		address, _ := reply.IsMoved()
		return address
	}
	return ""
}

// A slotMap holds the owner of every slot of a Cluster, for error texts, and to tell nodes apart. rueidis
// has such a map but does not export it. It may be as old as the last error.
type slotMap struct {
	mu     sync.Mutex
	ranges []slotRange
	loaded time.Time
	owners atomic.Pointer[[slots]uint8] // the number of each slot's owner
}

type slotRange struct {
	first, last uint16
	address     string
}

// slotMapTTL is how long a slot map is accurate enough for error texts.
const slotMapTTL = time.Second

// describe returns the owner of a slot for an error text. It does not wait: an
// outdated map is reloaded for the next error.
func (m *slotMap) describe(client rueidis.Client, slot uint16) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.loaded) > slotMapTTL {
		m.loaded = time.Now()
		go m.load(context.Background(), client)
	}
	for _, r := range m.ranges {
		if r.first <= slot && slot <= r.last {
			return fmt.Sprintf("%s (slot %d)", r.address, slot)
		}
	}
	return fmt.Sprintf("the node of slot %d", slot)
}

// load reads the map from a node. If that fails, the old map stays.
func (m *slotMap) load(ctx context.Context, client rueidis.Client) {
	ctx, cancel := context.WithTimeout(ctx, slotMapTTL)
	defer cancel()
	list, err := client.Do(ctx, client.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return
	}
	var ranges []slotRange
	for i := range list {
		if r, ok := parseSlotRange(&list[i]); ok {
			ranges = append(ranges, r)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges, m.loaded = ranges, time.Now()
	m.owners.Store(ownersOf(ranges))
}

// ownersOf numbers the nodes, and returns the number of the owner of each slot.
func ownersOf(ranges []slotRange) *[slots]uint8 {
	numbers, owners := map[string]int{}, new([slots]uint8)
	for _, r := range ranges {
		if _, known := numbers[r.address]; !known {
			numbers[r.address] = len(numbers) % maxNodes
		}
		for slot := int(r.first); slot <= min(int(r.last), slots-1); slot++ {
			owners[slot] = uint8(numbers[r.address])
		}
	}
	return owners
}

// nodeOfSlot returns the number of the node that owns a slot, as far as it is known.
func (rc *rueidisClient) nodeOfSlot(slot uint16) int {
	if owners := rc.slotMap.owners.Load(); owners != nil {
		return int(owners[slot%slots])
	}
	return 0
}

// parseSlotRange reads the first slot, the last, and the primary's host and port.
func parseSlotRange(m *rueidis.RedisMessage) (r slotRange, ok bool) {
	parts, err := m.ToArray()
	if err != nil || len(parts) < 3 {
		return r, false
	}
	first, err1 := parts[0].AsInt64()
	last, err2 := parts[1].AsInt64()
	node, err3 := parts[2].ToArray()
	if err1 != nil || err2 != nil || err3 != nil || len(node) < 2 {
		return r, false
	}
	host, err1 := node[0].ToString()
	port, err2 := node[1].AsInt64()
	if err1 != nil || err2 != nil {
		return r, false
	}
	return slotRange{uint16(first), uint16(last), net.JoinHostPort(host, strconv.FormatInt(port, 10))}, true
}
