package redisstore

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// slotMap says which node of a Cluster is asked about a slot, for the texts of
// errors; the client knows, but does not tell.
type slotMap struct {
	mu     sync.Mutex
	ranges []slotRange
	loaded time.Time
}

type slotRange struct {
	first, last uint16
	address     string
}

// slotMapTTL is how long what is known is good enough for a text.
const slotMapTTL = time.Second

// describe returns what to call the node of a slot. It does not wait: what it learns
// is for the next error.
func (o *slotMap) describe(client rueidis.Client, slot uint16) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.loaded) > slotMapTTL {
		o.loaded = time.Now()
		go o.load(context.Background(), client)
	}
	for _, r := range o.ranges {
		if r.first <= slot && slot <= r.last {
			return fmt.Sprintf("%s (slot %d)", r.address, slot)
		}
	}
	return fmt.Sprintf("the node of slot %d", slot)
}

// load asks a node who owns what. If that fails, what was known stays.
func (o *slotMap) load(ctx context.Context, client rueidis.Client) {
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
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ranges, o.loaded = ranges, time.Now()
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
