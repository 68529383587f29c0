//go:build integration && linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// The Dockerfile's build command, run on the files that .dockerignore leaves, makes a
// static binary. It runs as the image's user in an otherwise empty root, passes the
// health check, and exits on the image's stop signal.
func TestIntegrationDockerfileBinaryRuns(t *testing.T) {
	all, dir := instructions(t), t.TempDir()
	entry := jsonWords(t, all["ENTRYPOINT"][0])
	if !slices.Contains(all["COPY"], "--from=build /image/ /") || entry[0] != "/penstock" {
		t.Errorf("the image has not what /image has, with %s", entry[0])
	}
	if link := all["RUN"][len(all["RUN"])-2]; link != "mkdir -p /image/bin && ln -s ../penstock /image/bin/ratelimit" {
		t.Errorf("RUN %s: want a link from /bin/ratelimit, by which manifests of envoyproxy/ratelimit start it", link)
	}
	binary := buildImageBinary(t, all["RUN"][len(all["RUN"])-1], dir)
	wantStatic(t, binary)
	wantVersion(t, binary)
	user, group, _ := strings.Cut(all["USER"][0], ":")
	uid, err := strconv.ParseUint(user, 10, 32)
	gid, err2 := strconv.ParseUint(group, 10, 32)
	if err != nil || err2 != nil || uid == 0 || gid == 0 {
		t.Fatalf("USER %s: want numbers, because the image has no /etc/passwd, and not root", all["USER"][0])
	}
	inside := func(admin string, args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), binary, args...)
		if os.Getuid() == 0 { // only root can chroot
			c.Path = entry[0]
			c.SysProcAttr = &syscall.SysProcAttr{
				Chroot: dir, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
			}
			c.Dir = "/"
		}
		c.Env = []string{"PENSTOCK_HTTP=127.0.0.1:0", "PENSTOCK_GRPC=127.0.0.1:0", "PENSTOCK_RESP=127.0.0.1:0", "PENSTOCK_ADMIN=" + admin}
		return c
	}
	daemon := inside("127.0.0.1:0", append(entry[1:], jsonWords(t, all["CMD"][0])...)...)
	log, err := daemon.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	admin := awaitReady(t, log)
	_, check, _ := strings.Cut(all["HEALTHCHECK"][0], "CMD ")
	health := inside(admin, jsonWords(t, check)[1:]...)
	if out, err := health.CombinedOutput(); err != nil || jsonWords(t, check)[0] != entry[0] {
		t.Errorf("%s: %v\n%s", check, err, out)
	}
	signals := map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT}
	if err := daemon.Process.Signal(signals[all["STOPSIGNAL"][0]]); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, log) }()
	if err := daemon.Wait(); err != nil {
		t.Errorf("the daemon exited with %v", err)
	}
}

// awaitReady reads the log until the daemon is ready, and returns the address of its
// admin listener.
func awaitReady(t *testing.T, log io.Reader) (admin string) {
	t.Helper()
	var output bytes.Buffer
	for piece := make([]byte, 512); !strings.Contains(output.String(), "msg=ready"); {
		n, err := log.Read(piece)
		output.Write(piece[:n])
		if err != nil {
			t.Fatalf("the daemon is not ready: %v\n%s", err, output.String())
		}
	}
	for _, m := range listening.FindAllStringSubmatch(output.String(), -1) {
		if m[1] == "admin" {
			return m[2]
		}
	}
	t.Fatalf("no address of the admin listener in\n%s", output.String())
	return ""
}

// wantStatic fails the test if a binary needs shared libraries.
func wantStatic(t *testing.T, binary string) {
	t.Helper()
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("the binary needs %q: %v", libraries, err)
	}
}

// buildImageBinary runs the Dockerfile's build command on the files that .dockerignore
// leaves, and returns the path of the binary.
func buildImageBinary(t *testing.T, command, dir string) string {
	t.Helper()
	source := t.TempDir()
	shell(t, taggedCopy(t), "tar --exclude-from=.dockerignore --create . | tar --extract --directory "+source)
	target := regexp.MustCompile(`-o (\S+)`).FindStringSubmatch(command)[1]
	binary := filepath.Join(dir, filepath.Base(target))
	build := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(command, "-o "+target, "-o "+binary, 1))
	build.Dir = source
	build.Env = append(os.Environ(), "GOFLAGS=-buildvcs=true", "GOWORK=off") // whatever this machine has set
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return binary
}

// jsonWords parses the arguments of an instruction that are a JSON array.
func jsonWords(t *testing.T, instruction string) (all []string) {
	t.Helper()
	if err := json.Unmarshal([]byte(instruction), &all); err != nil {
		t.Fatalf("%s: %v", instruction, err)
	}
	return all
}
