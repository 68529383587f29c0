package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/rogpeppe/go-internal/testscript"
)

// waitTimeout bounds every wait for an event that must happen. It is generous, because
// it only matters when a test fails.
const waitTimeout = 60 * time.Second

type daemonKey struct{}

// A daemon is the penstock server of a script, with its load and its Redis server.
type daemon struct {
	command *exec.Cmd
	log     string
	exited  chan struct{}
	load    *scriptLoad
	redis   *redistest.Server
	xds     *xdsServer
}

func daemonOf(ts *testscript.TestScript) *daemon { return ts.Value(daemonKey{}).(*daemon) }

func (d *daemon) isRunning() bool {
	if d.command == nil {
		return false
	}
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

func startDaemon(ts *testscript.TestScript, neg bool, flags []string) {
	d := daemonOf(ts)
	if neg || d.isRunning() {
		ts.Fatalf("daemon: a script can run one at a time, and cannot expect it to fail")
	}
	args := []string{"serve"}
	for _, api := range []string{"grpc", "http", "resp", "admin"} {
		if !slices.Contains(flags, "--"+api) {
			args = append(args, "--"+api, "127.0.0.1:0")
		}
	}
	path, err := findIn(ts.Getenv("PATH"), "penstock")
	ts.Check(err)
	d.start(ts, exec.Command(path, append(args, flags...)...), nil)
}

func findIn(path, name string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		if file := filepath.Join(dir, name); isFile(file) {
			return file, nil
		}
	}
	return "", exec.ErrNotFound
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

var listening = regexp.MustCompile(`msg=listening listener=(\w+) addr=(\S+)|"msg":"listening","listener":"(\w+)","addr":"([^"]+)"`)

// setAddresses sets the variables with the addresses of the listeners.
func (d *daemon) setAddresses(ts *testscript.TestScript) {
	for _, m := range listening.FindAllStringSubmatch(d.logText(ts), -1) {
		ts.Setenv(strings.ToUpper(m[1]+m[3]), m[2]+m[4])
	}
}

func (d *daemon) logText(ts *testscript.TestScript) string {
	text, err := os.ReadFile(d.log)
	ts.Check(err)
	return string(text)
}

// awaitLogLine waits until the log matches.
func (d *daemon) awaitLogLine(ts *testscript.TestScript, pattern string) {
	want, err := regexp.Compile(pattern)
	ts.Check(err)
	deadline := time.After(waitTimeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !want.MatchString(d.logText(ts)) {
		select {
		case <-tick.C:
		case <-d.exited:
			if !want.MatchString(d.logText(ts)) {
				ts.Fatalf("the daemon exited, and its log does not match %q:\n%s", pattern, d.logText(ts))
			}
		case <-deadline:
			ts.Fatalf("after %v the log does not match %q:\n%s", waitTimeout, pattern, d.logText(ts))
		}
	}
}

func awaitLog(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] logged PATTERN")
	}
	d := daemonOf(ts)
	if !neg {
		d.awaitLogLine(ts, "(?m)"+args[0])
		return
	}
	if found := regexp.MustCompile("(?m)" + args[0]).FindString(d.logText(ts)); found != "" {
		ts.Fatalf("the log has %q", found)
	}
}

func signalDaemon(ts *testscript.TestScript, _ bool, args []string) {
	signals := map[string]syscall.Signal{"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
	s, ok := signals[strings.Join(args, " ")]
	if !ok {
		ts.Fatalf("usage: signal HUP|INT|TERM|KILL")
	}
	ts.Check(daemonOf(ts).command.Process.Signal(s))
}

// awaitExit waits for the daemon's exit and checks the code; after a signal, the code is
// the signal's name.
func awaitExit(ts *testscript.TestScript, _ bool, args []string) {
	d := daemonOf(ts)
	select {
	case <-d.exited:
	case <-time.After(waitTimeout):
		ts.Fatalf("after %v the daemon has not exited:\n%s", waitTimeout, d.logText(ts))
	}
	got := strconv.Itoa(d.command.ProcessState.ExitCode())
	if status, ok := d.command.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		got = strings.ToUpper(status.Signal().String())
	}
	if want := strings.Join(args, " "); got != want {
		ts.Fatalf("the daemon exited with %s, want %s:\n%s", got, want, d.logText(ts))
	}
	if !strings.Contains(d.logText(ts), "panic") {
		return
	}
	ts.Fatalf("the daemon panicked:\n%s", d.logText(ts))
}
