package httpapi_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

// curl runs curl and returns its output, followed by the status and Retry-After.
func curl(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"--silent", "--show-error", "--max-time", "60", "--write-out", "%{http_code} %header{retry-after}"}, args...)
	out, err := exec.CommandContext(t.Context(), "curl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("curl %q: %v (install curl)\n%s", args, err, out)
	}
	return string(out)
}

func TestTakeWithCurl(t *testing.T) {
	onEachStore(t, func(t *testing.T, store penstock.Store) {
		base := serveStore(t, store)
		args := []string{"--header", "Content-Type: application/json", "--data", `{"key":"user:42","limit":"1/1m"}`, base + "/v1/take"}
		for _, want := range []string{
			`{"allowed":true,"granted":1,"limit":1,"remaining":0,"retry_after":0,"reset_after":60,"delay":0,"source":"store"}` + "\n200 ",
			`{"allowed":false,"granted":0,"limit":1,"remaining":0,"retry_after":60,"reset_after":60,"delay":0,"source":"store"}` + "\n429 60",
		} {
			if got := curl(t, args...); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
		if got := curl(t, "--get", "--data-urlencode", "limit=1/1m burst=2", "--data-urlencode", "key=a b&c", base+"/v1/auth"); got != "200 " {
			t.Errorf("/v1/auth: got %q, want 200 and no body", got)
		}
		if got := curl(t, "--data", "{}", base+"/v1/take"); !strings.Contains(got, "want Content-Type: application/json") {
			t.Errorf("default content type of curl: got %q, want the detail about Content-Type", got)
		}
		// For bodies above 1 MB, curl sends Expect: 100-continue, and after a second the body all the
		// same, which is reset, unless it is told to wait.
		if got := curl(t, "--expect100-timeout", "60", "--header", "Content-Type: application/json", "--data", "@"+bigFile(t), base+"/v1/take"); !strings.HasSuffix(got, "413 ") {
			t.Errorf("body of 2 MB: got %q, want 413", got)
		}
	})
}

func bigFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(name, bytes.Repeat([]byte(" "), 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
