package faults

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// These faults befall a daemon, or a Redis behind it. Callers ask at all doors.

const behindDoors = "daemon"

// serve starts a daemon with rules, and puts all its doors under load.
func (r *run) serve(d *daemon) *daemon {
	r.Helper()
	path := filepath.Join(r.TempDir(), "rules.yaml")
	writeRules(r, path, doorRules)
	d.flags = append([]string{"--rules", path}, d.flags...)
	serve(r, d)
	l := &load{run: r, nodes: openDoors(r, d), pace: time.Millisecond, close: func() {}}
	r.load = l
	l.start()
	return d
}

func (d *daemon) rules() string { return d.flags[1] }

// redisDies is F1 behind a daemon, which must be seen to notice.
func redisDies(r *run) {
	server := r.redis()
	d := r.serve(&daemon{flags: []string{"--store", "redis://" + server.Addr}})
	r.load.answers(r.few(500))
	server.Kill()
	r.load.misses(50)
	redistest.WaitFor(r, "the daemon says that it decides without Redis", func() bool {
		text, err := d.get("/readyz")
		return err == nil && strings.Contains(text, `"degraded": true`)
	})
	r.restart(server)
	r.load.answers(r.few(500))
	redistest.WaitFor(r, "the daemon says what was lost", func() bool { return d.metric("penstock_store_state_losses_total", "") > 0 })
	r.happened("times that Redis was down", d.metric("penstock_store_transitions_total", `state="down"`))
	r.happened("times that Redis lost state", d.metric("penstock_store_state_losses_total", ""))
}

// redisIsLate is F1 too: when the daemon starts there is no Redis.
func redisIsLate(r *run) {
	server := r.redis()
	server.Kill()
	d := r.serve(&daemon{flags: []string{"--store", "redis://" + server.Addr}})
	r.load.misses(100)
	r.happened("decisions without a Redis", d.metric("penstock_decisions_by_source_total", `source="fallback"`))
	r.restart(server)
	r.load.answers(r.few(300))
}

// redisHangs is F3 behind a daemon.
func redisHangs(r *run) {
	server := r.redis()
	d := r.serve(&daemon{flags: []string{"--store", "redis://" + server.Addr}})
	r.load.answers(r.few(500))
	goroutines := d.metric("go_goroutines", "")
	if err := server.Pause(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = server.Resume() })
	r.load.misses(r.few(300))
	if n := d.metric("go_goroutines", ""); n > goroutines+500 {
		r.Errorf("%d goroutines while Redis hangs, %d before", n, goroutines)
	}
	if err := server.Resume(); err != nil {
		r.Fatal(err)
	}
	r.load.answers(r.few(300))
	r.happened("times that Redis was down", d.metric("penstock_store_transitions_total", `state="down"`))
}

// daemonDies is F17 and F2 behind doors: whoever asks finds nobody, until the daemon
// is started again. What it counted is where it keeps it.
func (r *run) daemonDies(d *daemon) {
	r.Helper()
	d.kill()
	r.happened("daemons killed by a signal", d.killedBySignal())
	unknown := r.history.count(&r.history.unknown)
	redistest.WaitFor(r, "callers notice", func() bool { return r.history.count(&r.history.unknown) > unknown+10 })
	d.start()
	r.load.answers(r.few(300))
}

func daemonDiesOnRedis(r *run) {
	server := r.redis()
	// A Redis that is only busy must not be given up here, or else a fallback decides.
	d := r.serve(&daemon{flags: []string{"--store", "redis://" + server.Addr, "--lease", "--redis-timeout", "10s"}})
	r.load.answers(r.few(500))
	r.daemonDies(d)
}

// daemonDiesRemembering has saved what it counted until a moment before.
func daemonDiesRemembering(r *run) {
	d := r.serve(&daemon{flags: []string{"--data", r.TempDir(), "--snapshot-interval", "1s"}})
	r.load.answers(r.few(500))
	saved := d.metric("penstock_snapshots_total", `result="success"`)
	redistest.WaitFor(r, "counts are saved", func() bool { return d.metric("penstock_snapshots_total", `result="success"`) > saved })
	r.daemonDies(d)
	r.happened("keys that were there before anybody asked again", len(regexp.MustCompile(`(?m)keys=[1-9]`).FindAllString(d.log.String(), -1)))
}

// damage is the file's: the daemon sets it aside, says so, and begins anew.
func damage(r *run) {
	data := r.TempDir()
	d := r.serve(&daemon{flags: []string{"--data", data, "--snapshot-interval", "1s"}})
	r.load.answers(r.few(300))
	redistest.WaitFor(r, "counts are saved", func() bool { return d.metric("penstock_snapshots_total", `result="success"`) > 0 })
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
	r.happened("files in which a bit was turned", damaged)
	d.start()
	r.load.answers(r.few(300))
	r.happened("complaints about it in the log", strings.Count(d.log.String(), "damaged"))
}

// reload is F18: rules change all the time, and every other time they are wrong.
func reload(r *run) {
	d := r.serve(&daemon{})
	r.load.answers(200)
	goroutines, files := d.metric("go_goroutines", ""), d.openFiles()
	for i := range r.few(50) {
		rules := doorRules + fmt.Sprintf("  - key: tenant\n    limit: \"%d/1m\"\n", i+1)
		if i%5 == 4 {
			rules = "domain: shop\ndescriptors: [" // a file that was cut off
		}
		failed, loaded := d.metric("penstock_config_loads_total", `"failure"`), d.metric("penstock_config_loads_total", `"success"`)
		writeRules(r, d.rules(), rules)
		d.signal(syscall.SIGHUP)
		redistest.WaitFor(r, "the rules are read", func() bool {
			return d.metric("penstock_config_loads_total", `"failure"`)+d.metric("penstock_config_loads_total", `"success"`) > failed+loaded
		})
	}
	r.load.answers(200)
	r.happened("times that rules were read", d.metric("penstock_config_loads_total", `"success"`))
	r.happened("times that they were wrong", d.metric("penstock_config_loads_total", `"failure"`))
	r.returns(d, goroutines, files)
}

// returns waits until a daemon has no more goroutines and files than before, give
// or take those of callers who come and go.
func (r *run) returns(d *daemon, goroutines, files int) {
	r.Helper()
	redistest.WaitFor(r, fmt.Sprintf("the daemon is back at %d goroutines and %d files", goroutines, files), func() bool {
		return d.metric("go_goroutines", "") <= goroutines+20 && d.openFiles() <= files+10
	})
}

// muteLog is F29: nobody reads what the daemon logs, and when the pipe is full,
// Redis is lost, which is worth a line. Nor may it keep the daemon from ending.
func muteLog(r *run) {
	server := r.redis()
	reader, writer, err := smallPipe()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = reader.Close() })
	d := r.serve(&daemon{
		flags: []string{"--store", "redis://" + server.Addr},
		logs:  func() (*os.File, error) { return writer, nil },
	})
	r.load.answers(200)
	writeRules(r, d.rules(), "domain: [")
	redistest.WaitFor(r, "the pipe is full", func() bool {
		d.signal(syscall.SIGHUP)
		return buffered(reader) > pipeSize-300
	})
	r.happened("bytes of log that nobody reads", buffered(reader))
	server.Kill()
	r.load.misses(100)
	r.restart(server)
	r.load.answers(200)
	r.load.finish()
	d.signal(syscall.SIGTERM)
	d.wait()
}

// fullDisk is F29 too: neither the log nor what was counted can be written.
func fullDisk(r *run) {
	data := r.TempDir()
	d := r.serve(&daemon{
		under: []string{"unshare", "-rm", "sh", "-c", `mount -t tmpfs -o size=4k none "$0" && exec "$@"`, data},
		flags: []string{"--data", data, "--snapshot-interval", "1s"},
		logs:  func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) },
	})
	redistest.WaitFor(r, "counts cannot be saved", func() bool { return d.metric("penstock_snapshots_total", `result="failure"`) > 0 })
	r.load.answers(r.few(300))
	r.happened("savings that failed", d.metric("penstock_snapshots_total", `result="failure"`))
}

// noFiles is F30: strangers hold so many connections that the daemon can accept no
// more. Those who were there before are served, and others when there is room.
func noFiles(r *run) {
	const most = 96
	d := r.serve(&daemon{under: []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, most)}})
	r.load.answers(200)
	var strangers []net.Conn
	hangUp := func() {
		for _, c := range strangers {
			_ = c.Close()
		}
	}
	r.Cleanup(hangUp)
	for range 2 * most {
		c, err := net.DialTimeout("tcp", d.doors["resp"], time.Second)
		if err != nil {
			break
		}
		strangers = append(strangers, c)
	}
	redistest.WaitFor(r, "the daemon has no files left", func() bool { return d.openFiles() >= most })
	r.happened("files that it had open, of all that it may", d.openFiles())
	r.load.answers(r.few(200))
	hangUp()
	redistest.WaitFor(r, "the daemon has files again", func() bool { return d.openFiles() < most/2 })
	r.load.answers(r.few(200))
	if _, err := d.get("/readyz"); err != nil {
		r.Errorf("when the strangers have gone: %v", err)
	}
}
