package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// A SentinelGroup is a primary with two replicas, and three sentinels that watch it.
type SentinelGroup struct {
	Servers   []*Server // the first is the primary at first
	Sentinels []*Server
}

// MasterName is what the sentinels call the primary.
const MasterName = "limits"

// StartSentinelGroup starts all of them, and waits until they know each other.
func StartSentinelGroup(t testing.TB) *SentinelGroup {
	t.Helper()
	w := &SentinelGroup{Servers: []*Server{StartForTest(t, Options{})}}
	primary := strconv.Itoa(w.Servers[0].Port)
	for range 2 {
		w.Servers = append(w.Servers, StartForTest(t, Options{Args: []string{"--replicaof", "127.0.0.1 " + primary}}))
	}
	for _, replica := range w.Servers[1:] {
		WaitFor(t, "a replica has its primary's data", func() bool { return InfoField(t, replica, "master_link_status") == "up" })
	}
	config := fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %[1]s 127.0.0.1 %[2]s 2\n"+
		"sentinel down-after-milliseconds %[1]s 500\nsentinel failover-timeout %[1]s 1500\n", MasterName, primary)
	for range 3 {
		sentinel := StartForTest(t, Options{Sentinel: config})
		MustCommand(t, sentinel, "SENTINEL", "DEBUG", "info-period", "200", "publish-period", "200", "ping-period", "100",
			"ask-period", "200") // they look every few seconds by default
		w.Sentinels = append(w.Sentinels, sentinel)
	}
	for _, sentinel := range w.Sentinels {
		WaitFor(t, "the sentinels know each other and the replicas", func() bool {
			return strings.Contains(MustCommand(t, sentinel, "INFO", "sentinel"), "slaves=2,sentinels=3")
		})
	}
	return w
}

// StartSentinel starts one sentinel that watches an address, and returns the URL of that.
func StartSentinel(t testing.TB, address string) (url string) {
	t.Helper()
	host, port, _ := strings.Cut(address, ":")
	sentinel := StartForTest(t, Options{Sentinel: fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %s %s %s 1\n", MasterName, host, port)})
	return "redis-sentinel://" + sentinel.Addr + "/" + MasterName
}

// URL returns what to open a store with.
func (w *SentinelGroup) URL() string {
	return "redis-sentinel://" + addresses(w.Sentinels) + "/" + MasterName
}

// Primary returns the server that a sentinel takes for the primary.
func (w *SentinelGroup) Primary(t testing.TB) *Server {
	t.Helper()
	address := MustCommand(t, w.Sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
	for _, server := range w.Servers {
		if address == fmt.Sprintf("127.0.0.1\n%d", server.Port) {
			return server
		}
	}
	t.Fatalf("the sentinels name %q, which nobody started", address)
	return nil
}

func addresses(servers []*Server) string {
	list := make([]string, len(servers))
	for i, server := range servers {
		list[i] = server.Addr
	}
	return strings.Join(list, ",")
}
