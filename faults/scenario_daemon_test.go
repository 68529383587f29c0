package faults

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// Faults of a daemon, or of its Redis. Callers use all APIs.

const daemonTopology = "daemon"

// serve starts a daemon with rules, and puts all its APIs under load.
func (r *run) serve(d *daemon) *daemon {
	r.Helper()
	return r.serveTo(d, openAPIs)
}

// serveTo is serve for some APIs only.
func (r *run) serveTo(d *daemon, open func(testing.TB, *daemon) []penstock.Store) *daemon {
	r.Helper()
	path := filepath.Join(r.TempDir(), "rules.yaml")
	writeRules(r, path, apiRules)
	d.flags = append([]string{"--rules", path}, d.flags...)
	serve(r, d)
	l := &load{run: r, nodes: open(r, d), pause: time.Millisecond, close: func() {}}
	r.load = l
	l.start()
	return d
}

func (d *daemon) rulesPath() string { return d.flags[1] }

// killRedisBehindDaemon is F1 behind a daemon, which must report it.
func killRedisBehindDaemon(r *run) {
	server := r.redis()
	// Calls to a busy Redis must not time out before the fault: each loses a unit.
	d := r.serve(&daemon{flags: []string{"--store", "redis://" + server.Addr, "--redis-timeout", "1s"}})
	r.load.awaitAnswers(r.scale(500))
	server.Kill()
	r.load.awaitMisses(50)
	redistest.WaitFor(r, "the daemon reports that Redis is down", func() bool {
		text, err := d.get("/readyz")
		return err == nil && strings.Contains(text, `"degraded": true`)
	})
	r.restart(server)
	r.load.awaitAnswers(r.scale(500))
	redistest.WaitFor(r, "the daemon reports lost state", func() bool { return d.metric("penstock_store_state_losses_total", "") > 0 })
	r.prove("times that Redis was down", d.metric("penstock_store_transitions_total", `state="down"`))
	r.prove("times that Redis lost state", d.metric("penstock_store_state_losses_total", ""))
}

// startWithoutRedis is F1 too: the daemon starts while Redis is down.
func startWithoutRedis(r *run) {
	server := r.redis()
	server.Kill()
	d := r.serve(&daemon{flags: []string{"--store", "redis://" + server.Addr}})
	r.load.awaitMisses(100)
	r.prove("decisions without Redis", d.metric("penstock_decisions_by_source_total", `source="fallback"`))
	r.restart(server)
	r.load.awaitAnswers(r.scale(300))
}

// hangRedisBehindDaemon is F3 behind a daemon.
func hangRedisBehindDaemon(r *run) {
	server := r.redis()
	d := r.serve(&daemon{flags: []string{"--store", "redis://" + server.Addr}})
	r.load.awaitAnswers(r.scale(500))
	goroutines := d.metric("go_goroutines", "")
	if err := server.Pause(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = server.Resume() })
	r.load.awaitMisses(r.scale(300))
	if n := d.metric("go_goroutines", ""); n > goroutines+500 {
		r.Errorf("%d goroutines while Redis hangs, %d before", n, goroutines)
	}
	if err := server.Resume(); err != nil {
		r.Fatal(err)
	}
	r.load.awaitAnswers(r.scale(300))
	r.prove("times that Redis was down", d.metric("penstock_store_transitions_total", `state="down"`))
}

// stallRedisBeforeDeadlines is F3 for callers like Envoy, whose calls have a deadline: none of them
// may miss it by waiting for Redis, though the timeout of Redis is longer. The deadlines are long, so
// that a busy machine is no reason to miss them. The second time all connections end and all scripts
// are gone when Redis stalls, so that calls wait for a connection and for scripts.
func stallRedisBeforeDeadlines(r *run) {
	const deadline = 5 * time.Second
	server := r.redis("--enable-debug-command", "yes")
	r.Cleanup(func() { _ = server.Resume() })
	d := r.serveTo(&daemon{flags: []string{"--store", "redis://" + server.Addr, "--redis-timeout", "1m"}},
		func(t testing.TB, d *daemon) []penstock.Store { return []penstock.Store{openGRPC(t, d, deadline)} })
	decided := func(source string) int { return d.metric("penstock_decisions_by_source_total", `source="`+source+`"`) }
	for i, stall := range []func(*redistest.Server) error{(*redistest.Server).Pause, stallWithoutConnections} {
		byStore := decided("store")
		redistest.WaitFor(r, "Redis decides", func() bool { return decided("store") > byStore+50 })
		byFallback := decided("fallback")
		if err := stall(server); err != nil {
			r.Fatal(err)
		}
		redistest.WaitFor(r, "the fallback decides", func() bool { return decided("fallback") > byFallback+r.scale(100) })
		r.prove(fmt.Sprintf("stall %d: decisions without Redis", i+1), decided("fallback")-byFallback)
		if err := server.Resume(); err != nil {
			r.Fatal(err)
		}
	}
	r.prove("times that Redis was down", d.metric("penstock_store_transitions_total", `state="down"`))
}

// stallWithoutConnections removes all scripts and ends all connections, in one transaction that goes
// on sleeping, so that no call comes between that and the stall.
func stallWithoutConnections(server *redistest.Server) error {
	var conns [2]net.Conn
	for i := range conns {
		conn, err := net.Dial("tcp", server.Addr)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		conns[i] = conn
	}
	if _, err := conns[0].Write([]byte("MULTI\r\nSCRIPT FLUSH\r\nCLIENT KILL TYPE normal\r\nDEBUG SLEEP 2\r\nEXEC\r\n")); err != nil {
		return err
	}
	if err := conns[1].SetReadDeadline(time.Now().Add(apiTimeout)); err != nil {
		return err
	}
	if _, err := conns[1].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("connections did not end: %w", err)
	}
	return server.Pause()
}

// killDaemon is F17 and F2: calls fail until the daemon is started again. Its counts
// are in Redis or in its snapshot.
func (r *run) killDaemon(d *daemon) {
	r.Helper()
	d.kill()
	r.prove("daemons killed by a signal", d.killedBySignal())
	unknown := r.history.count(&r.history.unknown)
	redistest.WaitFor(r, "callers notice", func() bool { return r.history.count(&r.history.unknown) > unknown+10 })
	d.start()
	r.load.awaitAnswers(r.scale(300))
}

func killLeasingDaemon(r *run) {
	server := r.redis()
	// A busy Redis must not time out here, or else the fallback decides.
	d := r.serve(&daemon{flags: []string{"--store", "redis://" + server.Addr, "--lease", "--redis-timeout", "10s"}})
	r.load.awaitAnswers(r.scale(500))
	r.killDaemon(d)
}

// killDaemonWithSnapshot kills a daemon that has just saved a snapshot.
func killDaemonWithSnapshot(r *run) {
	d := r.serve(&daemon{flags: []string{"--data", r.TempDir(), "--snapshot-interval", "1s"}})
	r.load.awaitAnswers(r.scale(500))
	saved := d.metric("penstock_snapshots_total", `result="success"`)
	redistest.WaitFor(r, "a snapshot is saved", func() bool { return d.metric("penstock_snapshots_total", `result="success"`) > saved })
	r.killDaemon(d)
	r.prove("restarts with restored keys", len(regexp.MustCompile(`(?m)keys=[1-9]`).FindAllString(d.log.String(), -1)))
}

// damageSnapshot flips a bit of the snapshot: the daemon renames the file, logs that,
// and starts empty.
func damageSnapshot(r *run) {
	data := r.TempDir()
	d := r.serve(&daemon{flags: []string{"--data", data, "--snapshot-interval", "1s"}})
	r.load.awaitAnswers(r.scale(300))
	redistest.WaitFor(r, "a snapshot is saved", func() bool { return d.metric("penstock_snapshots_total", `result="success"`) > 0 })
	d.kill()
	damaged := 0
	files, err := filepath.Glob(filepath.Join(data, "*"))
	if err != nil {
		r.Fatal(err)
	}
	for _, path := range files {
		if text, err := os.ReadFile(path); err == nil && len(text) > 100 {
			text[len(text)/2] ^= 1
			damaged++
			if err := os.WriteFile(path, text, 0o600); err != nil {
				r.Fatal(err)
			}
		}
	}
	r.prove("files with a flipped bit", damaged)
	d.start()
	r.load.awaitAnswers(r.scale(300))
	r.prove("log lines about the damage", strings.Count(d.log.String(), "damaged"))
}

// reloadRules is F18: rules change all the time, and every fifth version is invalid.
func reloadRules(r *run) {
	d := r.serve(&daemon{})
	r.load.awaitAnswers(200)
	goroutines, files := d.metric("go_goroutines", ""), d.openFiles()
	for i := range r.scale(50) {
		rules := apiRules + fmt.Sprintf("  - key: tenant\n    limit: \"%d/1m\"\n", i+1)
		if i%5 == 4 {
			rules = "domain: shop\ndescriptors: [" // a truncated file
		}
		failed, loaded := d.metric("penstock_config_loads_total", `"failure"`), d.metric("penstock_config_loads_total", `"success"`)
		writeRules(r, d.rulesPath(), rules)
		d.signal(syscall.SIGHUP)
		redistest.WaitFor(r, "the rules are loaded", func() bool {
			return d.metric("penstock_config_loads_total", `"failure"`)+d.metric("penstock_config_loads_total", `"success"`) > failed+loaded
		})
	}
	r.load.awaitAnswers(200)
	r.prove("loads of valid rules", d.metric("penstock_config_loads_total", `"success"`))
	r.prove("loads of invalid rules", d.metric("penstock_config_loads_total", `"failure"`))
	r.awaitResources(d, goroutines, files)
}

// awaitResources waits until a daemon has no more goroutines and files than before,
// apart from those of a few connections.
func (r *run) awaitResources(d *daemon, goroutines, files int) {
	r.Helper()
	redistest.WaitFor(r, fmt.Sprintf("the daemon is back at %d goroutines and %d files", goroutines, files), func() bool {
		return d.metric("go_goroutines", "") <= goroutines+20 && d.openFiles() <= files+10
	})
}

// blockLog is F29: the log is not read, and when the pipe is full, Redis goes down,
// which the daemon logs. The full pipe must not block decisions or shutdown.
func blockLog(r *run) {
	server := r.redis()
	reader, writer, err := smallPipe()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = reader.Close() })
	d := r.serve(&daemon{
		flags:   []string{"--store", "redis://" + server.Addr},
		openLog: func() (*os.File, error) { return writer, nil },
	})
	r.load.awaitAnswers(200)
	writeRules(r, d.rulesPath(), "domain: [")
	redistest.WaitFor(r, "the pipe is full", func() bool {
		d.signal(syscall.SIGHUP)
		return bytesBuffered(reader) > pipeSize-300
	})
	r.prove("bytes of unread log", bytesBuffered(reader))
	server.Kill()
	r.load.awaitMisses(100)
	r.restart(server)
	r.load.awaitAnswers(200)
	r.load.finish()
	d.signal(syscall.SIGTERM)
	d.wait()
}

// fillDisk is F29 too: neither the log nor a snapshot can be written.
func fillDisk(r *run) {
	data := r.TempDir()
	d := r.serve(&daemon{
		wrapper: []string{"unshare", "-rm", "sh", "-c", `mount -t tmpfs -o size=4k none "$0" && exec "$@"`, data},
		flags:   []string{"--data", data, "--snapshot-interval", "1s"},
		openLog: func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) },
	})
	redistest.WaitFor(r, "snapshots fail", func() bool { return d.metric("penstock_snapshots_total", `result="failure"`) > 0 })
	r.load.awaitAnswers(r.scale(300))
	r.prove("failed snapshots", d.metric("penstock_snapshots_total", `result="failure"`))
}

// exhaustFiles is F30: idle connections use up the daemon's file descriptors. Clients
// that are connected are served, and new ones when some descriptors are free.
func exhaustFiles(r *run) {
	const most = 96
	d := r.serve(&daemon{wrapper: []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, most)}})
	r.load.awaitAnswers(200)
	var conns []net.Conn
	closeAll := func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	r.Cleanup(closeAll)
	for range 2 * most {
		c, err := net.DialTimeout("tcp", d.addrs["resp"], time.Second)
		if err != nil {
			break
		}
		conns = append(conns, c)
	}
	redistest.WaitFor(r, "the daemon has no files left", func() bool { return d.openFiles() >= most })
	r.prove("open files, at the limit", d.openFiles())
	r.load.awaitAnswers(r.scale(200))
	closeAll()
	redistest.WaitFor(r, "the daemon has files again", func() bool { return d.openFiles() < most/2 })
	r.load.awaitAnswers(r.scale(200))
	if _, err := d.get("/readyz"); err != nil {
		r.Errorf("after the connections are closed: %v", err)
	}
}
