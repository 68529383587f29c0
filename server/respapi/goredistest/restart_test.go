//go:build unix

package goredistest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// No call of busy clients is lost while three daemons are restarted, one after the other and three times each.
// The clients repeat nothing, and connect to any daemon that accepts connections. The restarts wait for a number
// of calls, not for a time.
func TestRollingRestartLosesNoCallOfGoRedis(t *testing.T) {
	program := filepath.Join(t.TempDir(), "penstock")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/penstock")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var daemons []*daemon
	var addrs []string
	for range 3 {
		d := &daemon{program: program, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))}
		d.start(t)
		daemons, addrs = append(daemons, d), append(addrs, d.addr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*testTimeout)
	defer cancel()
	var answered atomic.Int64
	var stopped atomic.Bool
	var callers sync.WaitGroup
	for range 6 {
		c := newClient(redis.Options{Dialer: dialFirst(addrs), MaxRetries: -1, PoolSize: 2})
		callers.Go(func() {
			defer func() { _ = c.Close() }()
			for !stopped.Load() {
				if err := c.Do(ctx, "CL.THROTTLE", "k", 99, 1, 60).Err(); err != nil {
					t.Errorf("a call after %d others: %v", answered.Load(), err)
				}
				answered.Add(1)
			}
		})
	}
	await := func(calls int64) {
		calls += answered.Load()
		redistest.WaitFor(t, "calls are answered", func() bool { return answered.Load() >= calls })
	}
	for range 3 {
		for _, d := range daemons {
			await(500)
			d.stop(t)
			await(500) // by the other daemons
			d.start(t)
		}
	}
	stopped.Store(true)
	callers.Wait()
}

// dialFirst connects to the first daemon that accepts the connection, beginning with a different one each time.
func dialFirst(addrs []string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	var next atomic.Int64
	return func(ctx context.Context, _, _ string) (nc net.Conn, err error) {
		var d net.Dialer
		first := int(next.Add(1))
		for i := range addrs {
			if nc, err = d.DialContext(ctx, "tcp", addrs[(first+i)%len(addrs)]); !errors.Is(err, syscall.ECONNREFUSED) {
				return nc, err
			}
		}
		return nil, err
	}
}

// A daemon is a process that serves Redis clients at an address, with its default settings.
type daemon struct {
	program, addr string
	process       *exec.Cmd
}

// start starts the daemon, and waits until it accepts connections.
func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.process = exec.Command(d.program, "serve", "--resp", d.addr, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn")
	d.process.Stderr = os.Stderr
	redistest.DieWithParent(d.process)
	if err := d.process.Start(); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the daemon serves", func() bool {
		nc, err := net.Dial("tcp", d.addr)
		if err == nil {
			_ = nc.Close()
		}
		return err == nil
	})
}

// stop ends the daemon as service managers do, and waits until it has exited.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	if err := d.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.process.Wait(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
}
