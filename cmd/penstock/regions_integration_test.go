//go:build integration && linux

package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// A regionDaemon is a daemon of one of two regions.
type regionDaemon struct {
	*testing.T
	command *exec.Cmd
	url     string
}

func startRegionDaemon(t *testing.T, program, rules, store, home string) *regionDaemon {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	d := &regionDaemon{T: t, url: "http://" + address + "/v1/take"}
	d.command = exec.Command(program, "serve", "--rules", rules, "--store", "redis://"+store, "--home", "redis://"+home, "--regions", "2",
		"--home-timeout", "3s", "--redis-timeout", "5s", "--http", address, "--grpc", "", "--resp", "", "--admin", "")
	d.command.Stderr = os.Stderr
	redistest.DieWithParent(d.command)
	if err := d.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.kill)
	redistest.WaitFor(t, "the daemon listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return d
}

func (d *regionDaemon) kill() {
	_ = d.command.Process.Kill()
	_ = d.command.Wait()
}

// take reports whether one unit was granted.
func (d *regionDaemon) take() bool {
	const body = `{"domain":"api","descriptors":[{"entries":[{"key":"tenant","value":"a"}]}]}`
	answer, err := http.Post(d.url, "application/json", strings.NewReader(body))
	if err != nil {
		return false // it was killed
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// A daemon that is killed after home has charged a lot, and before it is in the pool, loses the lot. Nothing is granted
// twice, and the next daemon of the region asks again.
func TestIntegrationRegionDaemonIsKilledWithALot(t *testing.T) {
	program, rules := filepath.Join(t.TempDir(), "penstock"), filepath.Join(t.TempDir(), "rules.yaml")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const text = "domain: api\ndescriptors:\n  - {key: tenant, limit: 100/1h, global: {pool: 20%}}\n"
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	home, region := redistest.StartForTest(t, redistest.Options{}), redistest.StartForTest(t, redistest.Options{})
	toHome := redistest.StartProxy(t, home.Addr)

	first := startRegionDaemon(t, program, rules, region.Addr, toHome.Addr)
	toHome.Delay(time.Hour) // holds the answer
	answered := make(chan bool, 1)
	go func() { answered <- first.take() }()
	redistest.WaitFor(t, "home has charged a lot", func() bool {
		return strings.Contains(redistest.MustCommand(t, home, "KEYS", "*"), "tenant=a")
	})
	first.kill()
	if <-answered {
		t.Error("a unit was granted before home has answered")
	}
	pool := redistest.MustCommand(t, region, "KEYS", "*pool*")
	if left := redistest.MustCommand(t, region, "HGET", pool, "left"); left != "0" {
		t.Errorf("the pool %q has %s left of a lot that was not deposited", pool, left)
	}
	toHome.Delay(0)

	second := startRegionDaemon(t, program, rules, region.Addr, toHome.Addr)
	began, granted := time.Now(), 0
	redistest.WaitFor(t, "the next daemon gets a lot", second.take)
	for range 300 {
		if second.take() {
			granted++
		}
	}
	if most := 98 + int(time.Since(began)/(36*time.Second)) + 1; granted < 10 || granted > most {
		t.Errorf("granted %d of 100, of which 2 were lost: want from 10 to %d", granted, most)
	}
	t.Logf("granted %d of 100", granted)
}
