package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// A SentinelGroup is a primary with two replicas, monitored by three sentinels.
type SentinelGroup struct {
	Servers   []*Server // the first is the initial primary
	Sentinels []*Server
}

// MasterName is the name of the primary in the configuration of the sentinels.
const MasterName = "limits"

// longDownAfter is how long, in milliseconds, a server may be silent before a sentinel replaces
// it: longer than any test, so that a busy server is not taken for a dead one.
const longDownAfter = 3_600_000

// StartSentinelGroup starts a group and waits until all members know each other. The
// sentinels do not replace the primary before AllowFailover.
func StartSentinelGroup(t testing.TB) *SentinelGroup {
	t.Helper()
	g := &SentinelGroup{Servers: []*Server{StartForTest(t, Options{})}}
	primary := strconv.Itoa(g.Servers[0].Port)
	replica := Options{Args: []string{"--replicaof", "127.0.0.1 " + primary}}
	g.Servers = append(g.Servers, startAll(t, 2, func(int) Options { return replica })...)
	for _, replica := range g.Servers[1:] {
		WaitFor(t, "replica has the primary's data", func() bool { return InfoField(t, replica, "master_link_status") == "up" })
	}
	config := fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %[1]s 127.0.0.1 %[2]s 2\n"+
		"sentinel down-after-milliseconds %[1]s %[3]d\nsentinel failover-timeout %[1]s 5000\n", MasterName, primary, longDownAfter)
	g.Sentinels = startAll(t, 3, func(int) Options { return Options{Sentinel: config} })
	for _, sentinel := range g.Sentinels {
		// The default periods are seconds. That of pings stays one: a sentinel promotes
		// no replica that it has not heard of for five of them.
		MustCommand(t, sentinel, "SENTINEL", "DEBUG", "info-period", "200", "publish-period", "200", "ask-period", "200")
	}
	for _, sentinel := range g.Sentinels {
		WaitFor(t, "sentinels know each other and the replicas", func() bool {
			return strings.Contains(MustCommand(t, sentinel, "INFO", "sentinel"), "slaves=2,sentinels=3")
		})
	}
	return g
}

// AllowFailover lets the sentinels replace a primary that does not answer for half a
// second.
func (g *SentinelGroup) AllowFailover(t testing.TB) {
	t.Helper()
	for _, sentinel := range g.Sentinels {
		MustCommand(t, sentinel, "SENTINEL", "SET", MasterName, "down-after-milliseconds", "500")
	}
}

// StartSentinel starts one sentinel for the primary at an address and returns the
// URL of the sentinel.
func StartSentinel(t testing.TB, address string) (url string) {
	t.Helper()
	host, port, _ := strings.Cut(address, ":")
	sentinel := StartForTest(t, Options{Sentinel: fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %[1]s %[2]s %[3]s 1\n"+
		"sentinel down-after-milliseconds %[1]s %[4]d\n", MasterName, host, port, longDownAfter)})
	return "redis-sentinel://" + sentinel.Addr + "/" + MasterName
}

// URL returns the URL of the sentinels.
func (g *SentinelGroup) URL() string {
	return "redis-sentinel://" + addresses(g.Sentinels) + "/" + MasterName
}

// Primary returns the server that the first sentinel reports as the primary.
func (g *SentinelGroup) Primary(t testing.TB) *Server {
	t.Helper()
	address := MustCommand(t, g.Sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
	for _, server := range g.Servers {
		if address == fmt.Sprintf("127.0.0.1\n%d", server.Port) {
			return server
		}
	}
	t.Fatalf("the sentinel reports an unknown primary %q", address)
	return nil
}

func addresses(servers []*Server) string {
	list := make([]string, len(servers))
	for i, server := range servers {
		list[i] = server.Addr
	}
	return strings.Join(list, ",")
}
