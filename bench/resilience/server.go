package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// servers is some Redis servers, and the stores that were opened on them.
type servers struct {
	servers   []*redistest.Server
	sentinels []*redistest.Server
	url       string
	stores    []*redisstore.Store
	ports     []func() // end the reservations of the ports of the Cluster bus
}

// startRedis starts one server without persistence.
func startRedis() (*servers, error) {
	s := &servers{}
	if err := s.start(redistest.Options{}); err != nil {
		return nil, err
	}
	s.url = "redis://" + s.servers[0].Addr
	return s, nil
}

func (s *servers) start(o redistest.Options) error {
	server, err := redistest.Start(o)
	if err != nil {
		s.stop()
		return fmt.Errorf("on Debian: apt-get install redis-server: %w", err)
	}
	if o.Sentinel != "" {
		s.sentinels = append(s.sentinels, server)
	} else {
		s.servers = append(s.servers, server)
	}
	return nil
}

func (s *servers) stop() {
	for _, store := range s.stores {
		store.Close()
	}
	for _, server := range append(s.sentinels, s.servers...) {
		server.Stop()
	}
	for _, release := range s.ports {
		release()
	}
}

// The timeouts of a call: long if nothing is to fail, or the default.
const (
	patient = 10 * time.Second
	usual   = 50 * time.Millisecond
)

// open opens a store with its own client.
func (s *servers) open(timeout time.Duration) (*redisstore.Store, error) {
	store, err := redisstore.Open(context.Background(), s.url, &redisstore.Options{Timeout: timeout})
	if err == nil {
		s.stores = append(s.stores, store)
	}
	return store, err
}

// calls returns how many scripts the first server has run, by its INFO.
func (s *servers) calls() (calls int64, err error) {
	info, err := s.servers[0].Command("INFO", "commandstats")
	for line := range strings.Lines(info) {
		if !strings.HasPrefix(line, "cmdstat_eval") {
			continue
		}
		_, rest, _ := strings.Cut(line, "calls=")
		number, _, _ := strings.Cut(rest, ",")
		n, parseErr := strconv.ParseInt(number, 10, 64)
		if parseErr != nil {
			return 0, parseErr
		}
		calls += n
	}
	return calls, err
}

func limiter(store penstock.Store, text string) (*penstock.Limiter, error) {
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		return nil, err
	}
	return penstock.New(store, limit)
}

// waitLimit only detects hangs: on a busy machine an election may need several attempts, and
// sentinels that were stopped themselves do nothing for half a minute.
const waitLimit = 5 * time.Minute

// waitUntil polls until a condition holds.
func waitUntil(what string, is func() bool) error {
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); {
		if is() {
			return nil
		}
		<-time.After(5 * time.Millisecond)
	}
	return fmt.Errorf("waited for %s until %s", waitLimit, what)
}

func replyContains(s *redistest.Server, text string, words ...string) bool {
	answer, err := s.Command(words...)
	return err == nil && strings.Contains(answer, text)
}

const masterName = "limits"

// longDownAfter is how long, in milliseconds, a server may be silent before a sentinel replaces
// it: longer than a run, so that a busy server is not taken for a dead one.
const longDownAfter = 3_600_000

// startSentinel starts a primary with two replicas, and three sentinels, which do not replace it
// before allowSentinelFailover.
func startSentinel() (*servers, error) {
	s, err := startRedis()
	if err != nil {
		return nil, err
	}
	primary := strconv.Itoa(s.servers[0].Port)
	for range 2 {
		if err := s.start(redistest.Options{Args: []string{"--replicaof", "127.0.0.1 " + primary}}); err != nil {
			return nil, err
		}
	}
	config := fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %[1]s 127.0.0.1 %[2]s 2\n"+
		"sentinel down-after-milliseconds %[1]s %[3]d\nsentinel failover-timeout %[1]s 3000\n", masterName, primary, longDownAfter)
	var addresses []string
	for range 3 {
		if err := s.start(redistest.Options{Sentinel: config}); err != nil {
			return nil, err
		}
		sentinel := s.sentinels[len(s.sentinels)-1]
		addresses = append(addresses, sentinel.Addr)
		if _, err := sentinel.Command("SENTINEL", "DEBUG", "info-period", "200", "publish-period", "200",
			"ask-period", "200"); err != nil {
			s.stop()
			return nil, err
		}
	}
	s.url = "redis-sentinel://" + strings.Join(addresses, ",") + "/" + masterName
	err = waitUntil("the sentinels know each other and the replicas", func() bool {
		for _, sentinel := range s.sentinels {
			if !replyContains(sentinel, "slaves=2,sentinels=3", "INFO", "sentinel") {
				return false
			}
		}
		return s.replicated(1)
	})
	if err != nil {
		s.stop()
	}
	return s, err
}

// allowSentinelFailover lets the sentinels replace a primary that does not answer for a second.
func (s *servers) allowSentinelFailover() error {
	for _, sentinel := range s.sentinels {
		if _, err := sentinel.Command("SENTINEL", "SET", masterName, "down-after-milliseconds", "1000"); err != nil {
			return err
		}
	}
	return nil
}

// replicated reports whether the servers from an index on have their primary's data.
func (s *servers) replicated(from int) bool {
	for _, replica := range s.servers[from:] {
		if !replyContains(replica, "master_link_status:up", "INFO", "replication") {
			return false
		}
	}
	return true
}

const shards = 3

// startCluster starts a Cluster of three shards with a replica each, which does not take over
// before allowClusterFailover.
func startCluster() (*servers, error) {
	s := &servers{}
	var buses []string
	for range 2 * shards {
		port, release, err := redistest.ReservePort()
		if err != nil {
			s.stop()
			return nil, err
		}
		s.ports = append(s.ports, release)
		bus := strconv.Itoa(port)
		buses = append(buses, bus)
		err = s.start(redistest.Options{Args: []string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", bus,
			"--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes",
		}})
		if err != nil {
			return nil, err
		}
	}
	if err := s.formCluster(buses); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// allowClusterFailover lets the replica of the first server take over.
func (s *servers) allowClusterFailover() error {
	_, err := s.servers[shards].Command("CONFIG", "SET", "cluster-replica-no-failover", "no")
	return err
}

// meet introduces the nodes to the first, and reports whether they and it know each other. A node
// gives up a handshake after a second, for which a busy machine may suspend the other.
func (s *servers) meet(ids []string, bus string) (met bool) {
	met = true
	for i, node := range s.servers[1:] {
		if replyContains(s.servers[0], ids[i+1], "CLUSTER", "NODES") && replyContains(node, ids[0], "CLUSTER", "NODES") {
			continue
		}
		met = false
		_, _ = node.Command("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(s.servers[0].Port), bus) // repeated until they know each other
	}
	return met
}

// formCluster joins the servers into a Cluster.
func (s *servers) formCluster(buses []string) error {
	var ids, addresses []string
	for i, node := range s.servers {
		id, err := node.Command("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		ids, addresses = append(ids, id), append(addresses, node.Addr)
		commands := [][]string{{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)}}
		if i < shards {
			const slots = 16384
			commands = append(commands, []string{
				"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(slots * i / shards), strconv.Itoa(slots*(i+1)/shards - 1),
			})
		}
		for _, words := range commands {
			if _, err := node.Command(words...); err != nil {
				return fmt.Errorf("%s: %w", strings.Join(words, " "), err)
			}
		}
	}
	s.url = "redis-cluster://" + strings.Join(addresses, ",")
	if err := waitUntil("the nodes know each other", func() bool { return s.meet(ids, buses[0]) }); err != nil {
		return err
	}
	for i := shards; i < 2*shards; i++ {
		err := waitUntil("a node knows its primary", func() bool {
			_, err := s.servers[i].Command("CLUSTER", "REPLICATE", ids[i-shards])
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return waitUntil("the Cluster is complete", func() bool {
		for _, node := range s.servers {
			if !replyContains(node, "cluster_state:ok", "CLUSTER", "INFO") || !replyContains(node, "cluster_slots_ok:16384", "CLUSTER", "INFO") {
				return false
			}
		}
		return s.replicated(shards)
	})
}
