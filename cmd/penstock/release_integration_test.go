//go:build integration && linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// make release makes an archive for each platform, of a static binary that runs and knows its version, and
// checksums that are right. It does so after the steps of CONTRIBUTING.md, which leave a tag for each
// module on one commit. Only this machine's is built here.
func TestIntegrationReleaseArchiveHasStaticBinary(t *testing.T) {
	source, dir := taggedCopy(t), t.TempDir()
	if plan := shell(t, source, "make -n release"); !strings.Contains(plan, "in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64;") {
		t.Errorf("want archives for Linux and macOS, amd64 and arm64:\n%s", plan)
	}
	shell(t, source, "make release PLATFORMS=linux/"+runtime.GOARCH+" RELEASE="+dir+"/release")
	name := "penstock-v0.1.0-linux-" + runtime.GOARCH
	if sums := shell(t, dir, "cd release && sha256sum -c SHA256SUMS"); sums != name+".tar.gz: OK\n" {
		t.Errorf("checksums: %s", sums)
	}
	shell(t, dir, "tar --extract --gzip --file release/"+name+".tar.gz")
	wantStatic(t, filepath.Join(dir, name, "penstock"))
	wantVersion(t, filepath.Join(dir, name, "penstock"))
	if _, err := os.Stat(filepath.Join(dir, name, "LICENSE")); err != nil {
		t.Error(err)
	}
}

// wantVersion fails the test unless a binary has the version of the tags.
func wantVersion(t *testing.T, binary string) {
	t.Helper()
	if got := shell(t, ".", binary+" version"); !strings.HasPrefix(got, "penstock v0.1.0 ") {
		t.Errorf("version %q, want v0.1.0", got)
	}
}

// taggedCopy returns a repository with the files of this one in one commit, tagged as for a release.
func taggedCopy(t *testing.T) string {
	t.Helper()
	steps, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	tag := regexp.MustCompile(`git tag v0\.1\.0 && .*`).FindString(string(steps))
	if tag == "" {
		t.Fatal("CONTRIBUTING.md does not say how to tag a release")
	}
	copied := t.TempDir()
	shell(t, root, "git ls-files -z | tar --null --files-from=- --create | tar --extract --directory "+copied)
	shell(t, copied, "git init -q && git add --all && git -c user.name=t -c user.email=t@example.com commit -qm release && "+tag)
	return copied
}

// shell runs a command of the shell, which must succeed, and returns what it prints.
func shell(t *testing.T, dir, command string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sh", "-c", command)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}
