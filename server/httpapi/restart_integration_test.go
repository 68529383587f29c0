//go:build integration

package httpapi_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

func TestIntegrationNginxSurvivesRollingRestart(t *testing.T) {
	testRollingRestart(t, []string{"/closed", "/open"}, startNginxWith)
}

func TestIntegrationCaddySurvivesRollingRestart(t *testing.T) {
	testRollingRestart(t, []string{"/"}, startCaddyWith)
}

// testRollingRestart restarts two daemons, one after the other and twice each, while clients
// send requests through a proxy. Each is answered, and the limit holds. The restarts wait
// for a number of answers, not for a time.
func testRollingRestart(t *testing.T, paths []string, startProxy func(*testing.T, proxyOptions) string) {
	daemons := startDaemons(t, 2)
	site := newSite(t)
	proxy := startProxy(t, proxyOptions{site: site, limit: "500/1d", daemons: [2]string{daemons[0].http, daemons[1].http}})
	l := startLoad(t, proxy, paths)
	restarts := 0
	for range 2 {
		for _, d := range daemons {
			l.awaitAnswers(t, 200)
			before := d.cmd.Process.Pid
			d.stop(t)
			l.awaitAnswers(t, 200) // by the other daemon
			d.start(t)
			if d.cmd.Process.Pid != before {
				restarts++
			}
		}
	}
	l.awaitAnswers(t, 200)
	passed := l.end(t)
	if restarts != 4 {
		t.Errorf("%d daemons were restarted, want 4", restarts)
	}
	// A request whose daemon ends may be charged again by the other. One unit comes back
	// every three minutes.
	if least, most := int64(500-4*loadClients), int64(505); passed < least || passed > most {
		t.Errorf("%d requests passed, want %d to %d", passed, least, most)
	}
	if n := site.requests.Load(); n != passed {
		t.Errorf("the site got %d requests, and %d were answered by it", n, passed)
	}
}

// A daemonProcess is a penstock daemon in a process of its own.
type daemonProcess struct {
	http string // address
	args []string
	cmd  *exec.Cmd
	done chan struct{}
}

// startDaemons starts daemons that share a Redis. They have their default settings: no
// --shutdown-delay.
func startDaemons(t *testing.T, n int) []*daemonProcess {
	t.Helper()
	program := filepath.Join(t.TempDir(), "penstock")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/penstock").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	store, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Stop)
	all := make([]*daemonProcess, n)
	for i := range all {
		d := &daemonProcess{http: freeAddress(t)}
		d.args = []string{
			program, "serve", "--http", d.http, "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0",
			"--admin", "127.0.0.1:0", "--store", "redis://" + store.Addr, "--redis-timeout", "30s",
		}
		d.start(t)
		all[i] = d
		t.Cleanup(func() { d.stop(t) })
	}
	return all
}

// start starts the daemon and waits until it serves.
func (d *daemonProcess) start(t *testing.T) {
	t.Helper()
	d.cmd, d.done = exec.Command(d.args[0], d.args[1:]...), make(chan struct{})
	d.cmd.Stderr = os.Stderr
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func(cmd *exec.Cmd, done chan struct{}) {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a daemon ended: %v", err)
		}
		close(done)
	}(d.cmd, d.done)
	awaitListener(t, d.http, d.done)
}

// stop ends the daemon as service managers do, and waits until it has exited.
func (d *daemonProcess) stop(t *testing.T) {
	t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(time.Minute):
		t.Error("a daemon does not end on SIGTERM")
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// loadClients is the number of clients of a load.
const loadClients = 8

// A load sends requests until it is ended.
type load struct {
	stopped chan struct{}
	clients sync.WaitGroup

	answered, passed, failed atomic.Int64
}

func startLoad(t *testing.T, proxy string, paths []string) *load {
	l := &load{stopped: make(chan struct{})}
	for i := range loadClients {
		l.clients.Go(func() { l.run(t, proxy+paths[i%len(paths)]) })
	}
	return l
}

// run is one client. A request fails unless it passes or is denied by the limit.
func (l *load) run(t *testing.T, url string) {
	client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-l.stopped:
			return
		default:
		}
		answer, err := client.Get(url)
		if err != nil {
			t.Error(err)
			return
		}
		_, err = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		switch {
		case err != nil:
			t.Errorf("%s: %v", url, err)
			return
		case answer.StatusCode == 200:
			l.passed.Add(1)
		case answer.StatusCode != 429:
			l.failed.Add(1)
		}
		l.answered.Add(1)
	}
}

// awaitAnswers waits for n more answers.
func (l *load) awaitAnswers(t *testing.T, n int64) {
	t.Helper()
	want, timeout := l.answered.Load()+n, time.After(time.Minute)
	for tick := time.NewTicker(time.Millisecond); l.answered.Load() < want; {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%d answers, want %d", l.answered.Load(), want)
		}
	}
}

// end stops the clients, and returns how many requests passed.
func (l *load) end(t *testing.T) int64 {
	t.Helper()
	close(l.stopped)
	l.clients.Wait()
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed", n, l.answered.Load())
	}
	return l.passed.Load()
}
