package redisstore

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A virtualRedis is a client and its servers in virtual time, for tests of thousands of callers. Each node carries out
// one script after the other, which takes a while for the script and for each of its keys, and answers the calls of a
// connection in their order. As Redis does, it serves its connections in turns, of each as much as it reads at once, and
// sends the answers after the last. It knows the scripts that take from, peek at and refund fixed windows, one key, a batch
// or several, and once under an ID.
type virtualRedis struct {
	perKey  time.Duration
	nodes   []*virtualNode
	blind   bool // whether it tells no nodes apart, as the client of a program
	cluster bool
}

const perScript = 30 * time.Microsecond

// A virtualNode serves its connections in turns.
type virtualNode struct {
	redis *virtualRedis
	mu    sync.Mutex
	conns [][]*virtualCall
	lost  map[int]bool // connections of which nothing is read
	hung  bool
	sent  int
	wake  chan struct{}
	used  map[string]int64
	once  map[string]int64 // units granted under IDs, by their records
}

type virtualCall struct {
	call *Call // of the client, which uses it again when it has left
	own  Call  // what was sent, and the reply to it
	done chan struct{}

	mu   sync.Mutex
	left bool
}

// perTurn is how many bytes of a connection a node reads at once.
const perTurn = 16 << 10

// size returns about how many bytes a call is sent in.
func (c *virtualCall) size() (bytes int) {
	const command, header = 60, 6
	bytes = command
	for _, list := range [][]string{c.own.Keys, c.own.Args} {
		for _, text := range list {
			bytes += header + len(text)
		}
	}
	return bytes
}

// newVirtualRedis starts servers that serve until ctx ends.
func newVirtualRedis(ctx context.Context, perKey time.Duration, nodes, conns int) *virtualRedis {
	redis := &virtualRedis{perKey: perKey, cluster: nodes > 1}
	for range nodes {
		n := &virtualNode{
			redis: redis, conns: make([][]*virtualCall, conns), lost: map[int]bool{}, wake: make(chan struct{}, 1),
			used: map[string]int64{}, once: map[string]int64{},
		}
		redis.nodes = append(redis.nodes, n)
		go n.serve(ctx)
	}
	return redis
}

func (v *virtualRedis) Info(context.Context) (map[string]string, error) {
	return map[string]string{"virtual": "redis_version:7.0.0\r\n"}, nil
}

func (v *virtualRedis) Sharded() bool { return v.cluster }

func (v *virtualRedis) nodeOfSlot(slot uint16) int {
	if v.blind {
		return 0
	}
	return v.ownerOf(slot)
}

func (v *virtualRedis) ownerOf(slot uint16) int { return int(slot) * len(v.nodes) / slots }

func (v *virtualRedis) Do(ctx context.Context, calls []Call) {
	sent := make([]*virtualCall, len(calls))
	for i := range calls {
		sent[i] = &virtualCall{call: &calls[i], own: sentCall(&calls[i]), done: make(chan struct{})}
		v.nodes[v.ownerOf(slotOf(calls[i].Keys[0]))].send(sent[i])
	}
	for _, c := range sent {
		select {
		case <-c.done:
		case <-ctx.Done():
			c.leave(ctx.Err())
		}
	}
}

func sentCall(c *Call) Call {
	return Call{Script: c.Script, Keys: slices.Clone(c.Keys), Args: slices.Clone(c.Args)}
}

// leave ends the wait for an answer. The call is carried out all the same.
func (c *virtualCall) leave(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return
	default:
	}
	c.call.Err, c.left = err, true
}

func (n *virtualNode) send(c *virtualCall) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent++
	conn := n.sent * 7 % len(n.conns)
	n.conns[conn] = append(n.conns[conn], c)
	n.wakeUp()
}

func (n *virtualNode) wakeUp() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// fail changes what the node serves: nothing if it hangs, or not a connection that is lost.
func (n *virtualNode) fail(hang bool, lost ...int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hung, n.lost = hang, map[int]bool{}
	for _, conn := range lost {
		n.lost[conn] = true
	}
	n.wakeUp()
}

func (n *virtualNode) serve(ctx context.Context) {
	for {
		var served []*virtualCall
		for conn := range n.conns {
			for room := perTurn; room > 0; {
				c := n.next(conn)
				if c == nil {
					break
				}
				room -= c.size()
				n.carryOut(c)
				served = append(served, c)
			}
		}
		for _, c := range served {
			c.answer()
		}
		if len(served) > 0 {
			continue
		}
		select {
		case <-n.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (n *virtualNode) next(conn int) *virtualCall {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hung || n.lost[conn] || len(n.conns[conn]) == 0 {
		return nil
	}
	c := n.conns[conn][0]
	n.conns[conn] = n.conns[conn][1:]
	return c
}

func (n *virtualNode) carryOut(c *virtualCall) {
	if c.own.Script.Name != "probe" {
		<-time.After(perScript + time.Duration(len(c.own.Keys))*n.redis.perKey)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.execute(&c.own)
}

// answer ends the wait for the answer, if there is one.
func (c *virtualCall) answer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.left {
		c.call.Reply = append(c.call.Reply, c.own.Reply...)
		close(c.done)
	}
}

// execute does what the script of a call does; see arguments.go.
func (n *virtualNode) execute(c *Call) {
	switch {
	case c.Script.Name == "probe":
		c.Reply = append(c.Reply, 1)
	case strings.HasSuffix(c.Script.Name, " once") && len(c.Keys) > 2:
		n.takeEachOnce(c)
	case strings.HasSuffix(c.Script.Name, " once"):
		c.Reply = append(c.Reply, n.takeOnce(c.Keys, c.Args)...)
	case c.Script.Name == "take all" && c.Args[0] == "0": // a try, without an ID
		c.Reply = append(c.Reply, 1)
		for i, key := range c.Keys {
			c.Reply = append(c.Reply, n.used[key], number(c.Args[2+6*i+4]))
		}
	case c.Script.Name == "take all": // of two keys, under limits and for costs that are the same
		for i := 0; i < len(c.Keys); i += 2 {
			n.takeBoth(c, c.Keys[i:i+2])
		}
	default:
		for _, key := range c.Keys {
			c.Reply = append(c.Reply, n.take(key, c.Args))
		}
	}
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// take takes from a key, and returns what was used and left of the window, in one number.
func (n *virtualNode) take(key string, step []string) (state int64) {
	cost, count, period := number(step[0]), number(step[1]), number(step[2])
	used := n.used[key]
	if used+cost <= count {
		n.used[key] = max(used+cost, 0)
	}
	if used == 0 {
		return 0
	}
	return used*(period+1) + period
}

func (n *virtualNode) takeBoth(c *Call, keys []string) {
	step := c.Args[3:6] // after the number of requests, whether they can fit, and the number of arguments
	cost, count := number(step[0]), number(step[1])
	fits := n.used[keys[0]]+cost <= count && n.used[keys[1]]+cost <= count
	taken := int64(1)
	if !fits {
		taken, step = 0, append([]string{"0"}, step[1:]...)
	}
	c.Reply = append(c.Reply, taken, n.take(keys[0], step), n.take(keys[1], step))
}

// takeEachOnce takes under an ID from each key of a batch, whose costs follow the other arguments.
func (n *virtualNode) takeEachOnce(c *Call) {
	args, costs := c.Args[:len(c.Args)-len(c.Keys)/2], c.Args[len(c.Args)-len(c.Keys)/2:]
	for i, cost := range costs {
		reply := n.takeOnce(c.Keys[2*i:2*i+2], append([]string{cost}, args[1:]...))
		c.Reply = append(append(c.Reply, int64(len(reply))), reply...)
	}
}

// takeOnce takes under an ID, or refunds what it was granted.
func (n *virtualNode) takeOnce(keys, args []string) (reply []int64) {
	cost, count, period := number(args[0]), number(args[1]), number(args[2])
	key, record, used := keys[0], keys[1], n.used[keys[0]]
	granted, found := n.once[record]
	switch isRefund := args[len(args)-1] == "r"; {
	case found && isRefund:
		reply = append(reply, granted, 0, 0)
		n.used[key], n.once[record] = max(used-granted, 0), 0
	case found:
		reply = append(reply, granted, 0)
	case !isRefund && used+cost <= count:
		n.used[key], n.once[record] = used+cost, cost
	}
	return append(reply, used, period)
}
