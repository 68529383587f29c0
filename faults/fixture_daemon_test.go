package faults

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/rules"
)

// binary builds the daemon, once, into a folder that TestMain removes.
var (
	binary    = sync.OnceValues(build)
	binaryDir string
)

func build() (path string, err error) {
	if binaryDir, err = os.MkdirTemp("", "penstock-faults"); err != nil {
		return "", err
	}
	path = filepath.Join(binaryDir, "penstock")
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/penstock").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the daemon: %w\n%s", err, out)
	}
	return path, nil
}

func removeBinary() {
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir)
	}
}

// A daemon is a running daemon. It keeps its addresses when it is started again.
type daemon struct {
	tb      testing.TB
	wrapper []string // the command that runs it, if any
	flags   []string
	openLog func() (*os.File, error) // where its log goes, if not to log
	addrs   map[string]string        // by API
	command *exec.Cmd
	exited  chan struct{}
	log     safeBuffer
}

// A safeBuffer is a buffer that a test can read while a process writes it.
type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

var apiNames = []string{"grpc", "http", "resp", "admin"}

// serve starts a daemon with flags.
func serve(t testing.TB, d *daemon) *daemon {
	t.Helper()
	d.tb, d.addrs = t, map[string]string{}
	for _, api := range apiNames {
		d.addrs[api] = "127.0.0.1:" + strconv.Itoa(redistest.FreePort(t))
	}
	d.start()
	t.Cleanup(d.kill)
	return d
}

func (d *daemon) start() {
	d.tb.Helper()
	path, err := binary()
	if err != nil {
		d.tb.Fatal(err)
	}
	words := append([]string{}, d.wrapper...)
	words = append(words, path, "serve")
	for _, api := range apiNames {
		words = append(words, "--"+api, d.addrs[api])
	}
	d.command = exec.Command(words[0], append(words[1:], d.flags...)...)
	d.command.Env = append(os.Environ(), "HOME=/nowhere")
	d.command.Stderr = &d.log
	if d.openLog != nil {
		file, err := d.openLog()
		if err != nil {
			d.tb.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		d.command.Stderr = file
	}
	redistest.DieWithParent(d.command)
	if err := d.command.Start(); err != nil {
		d.tb.Fatal(err)
	}
	d.exited = make(chan struct{})
	go func() {
		_ = d.command.Wait() // the result is in ProcessState
		close(d.exited)
	}()
	redistest.WaitFor(d.tb, "the daemon is ready", func() bool { return d.ready() })
}

func (d *daemon) ready() bool {
	select {
	case <-d.exited:
		d.tb.Fatalf("the daemon exited: %v\n%s", d.command.ProcessState, d.log.String())
	default:
	}
	_, err := d.get("/readyz")
	return err == nil
}

// kill ends the daemon at once.
func (d *daemon) kill() {
	_ = d.command.Process.Kill()
	<-d.exited
}

func (d *daemon) signal(s os.Signal) {
	d.tb.Helper()
	if err := d.command.Process.Signal(s); err != nil {
		d.tb.Fatal(err)
	}
}

// killedBySignal returns 1 if a signal ended the daemon, and 0 otherwise.
func (d *daemon) killedBySignal() int {
	if status, ok := d.command.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 1
	}
	return 0
}

// get sends a request to the admin API.
func (d *daemon) get(path string) (string, error) {
	client := http.Client{Timeout: longTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + d.addrs["admin"] + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}

// metric returns the sum of a metric over all series whose labels contain a text.
func (d *daemon) metric(name, labels string) (sum int) {
	d.tb.Helper()
	text, err := d.get("/metrics")
	if err != nil {
		d.tb.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^` + name + `(\{[^}]*\})? (\S+)$`)
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		if value, err := strconv.ParseFloat(m[2], 64); err == nil && strings.Contains(m[1], labels) {
			sum += int(value)
		}
	}
	return sum
}

// openFiles returns how many files the daemon has open.
func (d *daemon) openFiles() int {
	d.tb.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.command.Process.Pid))
	if err != nil {
		d.tb.Fatal(err)
	}
	return len(files)
}

// writeRules replaces a rule file atomically.
func writeRules(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", rules.Seal([]byte(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// wait waits until the daemon has exited without being killed.
func (d *daemon) wait() {
	d.tb.Helper()
	select {
	case <-d.exited:
	case <-time.After(4 * longTimeout):
		d.tb.Fatalf("the daemon has not exited:\n%s", d.log.String())
	}
}
