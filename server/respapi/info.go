package respapi

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// redisVersion is the version of Redis whose clients find everything here that they
// look for by version.
const redisVersion = "7.0.0"

// A infoSection is a part of what INFO tells.
type infoSection struct {
	name  string
	lines []string
}

// connLimits returns how many clients there is room for, and for how many there was none.
func (d *Server) connLimits() (most int, refused int64) {
	if e := d.options.Listener; e != nil {
		return e.Max(), e.Refused()
	}
	return 0, 0
}

func (d *Server) infoSections() []infoSection {
	d.mu.Lock()
	open := len(d.conns)
	d.mu.Unlock()
	up := int64(d.now().Sub(d.started) / time.Second)
	most, refused := d.connLimits()
	all := []infoSection{
		{"Server", []string{
			"server_name:penstock", "redis_version:" + redisVersion, "redis_mode:standalone",
			"process_id:" + strconv.Itoa(os.Getpid()),
			fmt.Sprintf("uptime_in_seconds:%d", up),
		}},
		{"Clients", []string{
			fmt.Sprintf("connected_clients:%d", open),
			fmt.Sprintf("maxclients:%d", most),
		}},
		{"Persistence", []string{"loading:0"}},
		{"Stats", []string{
			fmt.Sprintf("total_connections_received:%d", d.accepted.Load()),
			fmt.Sprintf("total_commands_processed:%d", d.commands.Load()),
			fmt.Sprintf("rejected_connections:%d", refused),
		}},
		{"Replication", []string{"role:master", "connected_slaves:0"}},
		{"Cluster", []string{"cluster_enabled:0"}},
	}
	if d.memory != nil { // others do not know
		all = append(all, infoSection{"Keyspace", []string{
			fmt.Sprintf("db0:keys=%d,expires=%[1]d,avg_ttl=0", d.memory.Stats().Keys),
		}})
	}
	return all
}

// info is INFO [section ...].
func (c *conn) info(args [][]byte) {
	wanted := map[string]bool{}
	for _, name := range args[1:] {
		wanted[strings.ToLower(string(name))] = true
	}
	everything := len(args) == 1 || wanted["all"] || wanted["default"] || wanted["everything"]
	c.flushCounters() // this command counts, too
	var b strings.Builder
	for _, s := range c.server.infoSections() {
		if !everything && !wanted[strings.ToLower(s.name)] {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("# " + s.name + "\r\n" + strings.Join(s.lines, "\r\n") + "\r\n")
	}
	c.out.text(b.String())
}

// config is CONFIG GET pattern ..., as far as clients ask for it.
func (c *conn) config(args [][]byte) {
	if !strings.EqualFold(string(args[1]), "GET") || len(args) < 3 {
		c.out.error("ERR only CONFIG GET is answered here; settings come from penstock's flags, environment and file")
		return
	}
	most, _ := c.server.connLimits()
	settings := [][2]string{
		{"appendonly", "no"},
		{"databases", "1"},
		{"maxclients", strconv.Itoa(most)},
		{"save", ""},
		{"timeout", strconv.FormatInt(int64(c.server.options.IdleTimeout/time.Second), 10)},
	}
	var found []string
	for _, s := range settings {
		if matchesAny(args[2:], s[0]) {
			found = append(found, s[0], s[1])
		}
	}
	c.out.mapHeader(len(found) / 2)
	for _, text := range found {
		c.out.text(text)
	}
}

func matchesAny(patterns [][]byte, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(strings.ToLower(string(p)), name); ok { // a pattern that is none matches nothing
			return true
		}
	}
	return false
}
