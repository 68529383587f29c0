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

// curl runs curl, and returns what it printed, with the status in the end.
func curl(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"--silent", "--show-error", "--max-time", "60", "--write-out", "%{http_code} %header{retry-after}"}, args...)
	out, err := exec.CommandContext(t.Context(), "curl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("curl, which make test installs, %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestCurl(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		at := open(t, store)
		ask := []string{"--header", "Content-Type: application/json", "--data", `{"key":"user:42","limit":"1/1m"}`, at + "/v1/take"}
		for _, want := range []string{
			`{"allowed":true,"granted":1,"limit":1,"remaining":0,"retry_after":0,"reset_after":60,"delay":0,"source":"store"}` + "\n200 ",
			`{"allowed":false,"granted":0,"limit":1,"remaining":0,"retry_after":60,"reset_after":60,"delay":0,"source":"store"}` + "\n429 60",
		} {
			if got := curl(t, ask...); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
		if got := curl(t, "--get", "--data-urlencode", "limit=1/1m burst=2", "--data-urlencode", "key=a b&c", at+"/v1/auth"); got != "200 " {
			t.Errorf("/v1/auth: got %q, want 200 and no body", got)
		}
		if got := curl(t, "--data", "{}", at+"/v1/take"); !strings.Contains(got, "want Content-Type: application/json") {
			t.Errorf("a form, as curl sends it unless told otherwise: got %q, want to hear what is missing", got)
		}
		// More than a megabyte, curl asks before it sends.
		if got := curl(t, "--header", "Content-Type: application/json", "--data", "@"+bigFile(t), at+"/v1/take"); !strings.HasSuffix(got, "413 ") {
			t.Errorf("two megabytes: got %q, want 413", got)
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
