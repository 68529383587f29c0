//go:build integration && linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// make release makes an archive for each platform, of a static binary that runs, and
// checksums that are right. Only this machine's is built here.
func TestIntegrationReleaseArchiveHasStaticBinary(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		c.Dir = dir
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if plan := run("make", "-C", top, "-n", "release"); !strings.Contains(plan, "in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64;") {
		t.Errorf("want archives for Linux and macOS, amd64 and arm64:\n%s", plan)
	}
	out := filepath.Join(dir, "release")
	run("make", "-C", top, "release", "PLATFORMS=linux/"+runtime.GOARCH, "VERSION=v0.0.0", "RELEASE="+out)
	name := "penstock-v0.0.0-linux-" + runtime.GOARCH
	if sums := run("sh", "-c", "cd release && sha256sum -c SHA256SUMS"); sums != name+".tar.gz: OK\n" {
		t.Errorf("checksums: %s", sums)
	}
	run("tar", "--extract", "--gzip", "--file", filepath.Join(out, name+".tar.gz"))
	wantStatic(t, filepath.Join(dir, name, "penstock"))
	run(filepath.Join(dir, name, "penstock"), "version")
	if _, err := os.Stat(filepath.Join(dir, name, "LICENSE")); err != nil {
		t.Error(err)
	}
}
