//go:build unix

package rulesource_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A FIFO in place of the rules that were kept does not keep a program from failing at once, if no server has any.
func TestLoadWithFIFOAsKeptRulesDoesNotHang(t *testing.T) {
	t.Parallel()
	host := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	keep := filepath.Join(t.TempDir(), "rules")
	if err := syscall.Mkfifo(keep, 0o600); err != nil {
		t.Fatal(err)
	}
	source, done := openSource(t, "http://"+host+"/rules.yaml", "", keep), make(chan error, 1)
	go func() {
		_, err := source.Load(t.Context())
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "is no regular file") {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it hangs")
	}
}
