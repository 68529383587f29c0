package redisproxy

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

// StartTwemproxy starts a real twemproxy in front of servers, which the test ends, and returns its URL. With tags,
// keys with the same hash tag are on the same server.
func StartTwemproxy(t testing.TB, program string, tags bool, servers ...*redistest.Server) string {
	t.Helper()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))
	config := fmt.Sprintf("pool:\n  listen: %s\n  redis: true\n  distribution: ketama\n", addr)
	if tags {
		config += "  hash_tag: \"{}\"\n"
	}
	config += "  servers:\n"
	for _, server := range servers {
		config += fmt.Sprintf("   - %s:1\n", server.Addr)
	}
	file := filepath.Join(t.TempDir(), "twemproxy.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "--conf-file", file, "--pid-file", file+".pid", "--output", file+".log",
		"--stats-addr", "127.0.0.1", "--stats-port", strconv.Itoa(redistest.FreePort(t)))
	redistest.DieWithParent(command)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	redistest.WaitFor(t, "twemproxy listens", func() bool {
		b, err := dial(addr)
		if err == nil {
			_ = b.conn.Close()
		}
		return err == nil
	})
	return "redis://" + addr
}
