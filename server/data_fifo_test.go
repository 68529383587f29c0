//go:build unix

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/server"
)

// A FIFO in place of any file of the data directory does not keep a daemon from starting, or from failing at once.
func TestServerWithFIFOInDataDoesNotHang(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	start(t, map[string]string{"data": full}).end()
	names, err := os.ReadDir(full)
	if err != nil || len(names) == 0 {
		t.Fatalf("the files are %v, %v, want some", names, err)
	}
	for _, file := range names {
		dir := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(dir, file.Name()), 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := server.New(t.Context(), load(t, map[string]string{"data": dir}), nil)
			done <- err
		}()
		select {
		case err := <-done:
			if err != nil && !strings.Contains(err.Error(), "regular") {
				t.Errorf("%s: got %v", file.Name(), err)
			}
		case <-time.After(testTimeout):
			t.Fatalf("%s: the start hangs", file.Name())
		}
	}
}
