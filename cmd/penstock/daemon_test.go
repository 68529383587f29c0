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

// patience is how long anything may take that will come if nothing is broken.
const patience = 60 * time.Second

type daemonKey struct{}

// A daemon is the one that a script has started.
type daemon struct {
	command *exec.Cmd
	log     string
	exited  chan struct{}
	load    *scriptLoad
	redis   *redistest.Server
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
		ts.Fatalf("daemon: a script has one at a time, and it must start")
	}
	args := []string{"serve"}
	for _, door := range []string{"grpc", "http", "resp", "admin"} {
		if !slices.Contains(flags, "--"+door) {
			args = append(args, "--"+door, "127.0.0.1:0")
		}
	}
	d.log = ts.MkAbs("daemon.log")
	log, err := os.Create(d.log)
	ts.Check(err)
	path, err := findIn(ts.Getenv("PATH"), "penstock")
	ts.Check(err)
	d.command = exec.Command(path, append(args, flags...)...)
	d.command.Dir, d.command.Stderr, d.command.Stdout = ts.MkAbs("."), log, log
	d.command.Env = append(os.Environ(), "HOME=/nowhere")
	ts.Check(d.command.Start())
	command, exited := d.command, make(chan struct{})
	d.exited = exited
	go func() {
		_ = command.Wait() // its state says it
		_ = log.Close()
		close(exited)
	}()
	ts.Defer(func() {
		_ = command.Process.Kill()
		<-exited
	})
	d.await(ts, `(?m)msg=ready$|"msg":"ready"`)
	d.setAddresses(ts)
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

var listening = regexp.MustCompile(`msg=listening door=(\w+) addr=(\S+)|"msg":"listening","door":"(\w+)","addr":"([^"]+)"`)

// setAddresses tells the script where the doors are.
func (d *daemon) setAddresses(ts *testscript.TestScript) {
	for _, m := range listening.FindAllStringSubmatch(d.text(ts), -1) {
		ts.Setenv(strings.ToUpper(m[1]+m[3]), m[2]+m[4])
	}
}

func (d *daemon) text(ts *testscript.TestScript) string {
	text, err := os.ReadFile(d.log)
	ts.Check(err)
	return string(text)
}

// await waits until the log matches.
func (d *daemon) await(ts *testscript.TestScript, pattern string) {
	want, err := regexp.Compile(pattern)
	ts.Check(err)
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !want.MatchString(d.text(ts)) {
		select {
		case <-tick.C:
		case <-d.exited:
			if !want.MatchString(d.text(ts)) {
				ts.Fatalf("the daemon ended, and its log does not match %q:\n%s", pattern, d.text(ts))
			}
		case <-deadline:
			ts.Fatalf("after %v the log does not match %q:\n%s", patience, pattern, d.text(ts))
		}
	}
}

func awaitLog(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] logged PATTERN")
	}
	d := daemonOf(ts)
	if !neg {
		d.await(ts, "(?m)"+args[0])
		return
	}
	if found := regexp.MustCompile("(?m)" + args[0]).FindString(d.text(ts)); found != "" {
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

// awaitEnd checks the exit code; one that is a signal's is written as its name.
func awaitEnd(ts *testscript.TestScript, _ bool, args []string) {
	d := daemonOf(ts)
	select {
	case <-d.exited:
	case <-time.After(patience):
		ts.Fatalf("after %v the daemon has not ended:\n%s", patience, d.text(ts))
	}
	got := strconv.Itoa(d.command.ProcessState.ExitCode())
	if status, ok := d.command.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		got = strings.ToUpper(status.Signal().String())
	}
	if want := strings.Join(args, " "); got != want {
		ts.Fatalf("the daemon ended with %s, want %s:\n%s", got, want, d.text(ts))
	}
	if !strings.Contains(d.text(ts), "panic") {
		return
	}
	ts.Fatalf("the daemon panicked:\n%s", d.text(ts))
}
