package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server"
)

const root = "../.."

// instructions returns the arguments of the Dockerfile's instructions, by keyword.
func instructions(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		word, rest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && word != "#" {
			all[word] = append(all[word], rest)
		}
	}
	return all
}

// The image is built by the compiler that go.mod names, on a base that nobody can replace.
func TestDockerfileUsesModuleGoVersion(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^toolchain go(\d+\.\d+)\.`).FindSubmatch(text)
	all := instructions(t)
	want := regexp.MustCompile(`^--platform=\$BUILDPLATFORM golang:` + string(version[1]) + `\.\d+@sha256:[0-9a-f]{64} AS build$`)
	if from := all["FROM"]; len(from) != 2 || !want.MatchString(from[0]) || from[1] != "scratch" {
		t.Errorf("the image is built from %q, want %s and scratch", from, want)
	}
	if !slices.Contains(all["ENV"], "GOTOOLCHAIN=auto") {
		t.Errorf("ENV %q: want GOTOOLCHAIN=auto, without which the base's compiler is used", all["ENV"])
	}
}

// The build command compiles for the architecture that the image is built for, and without
// one for this machine.
func TestDockerfileBuildsForTargetArchitecture(t *testing.T) {
	all := instructions(t)
	if !slices.Contains(all["ARG"], "TARGETOS TARGETARCH") {
		t.Errorf("ARG %q: want TARGETOS TARGETARCH, without which they are empty", all["ARG"])
	}
	settings, _, _ := strings.Cut(all["RUN"][len(all["RUN"])-1], "go build")
	for target, want := range map[string]string{
		"TARGETOS=linux TARGETARCH=arm64": "linux arm64 0",
		"TARGETOS=linux TARGETARCH=amd64": "linux amd64 0",
		"TARGETOS= TARGETARCH=":           runtime.GOOS + " " + runtime.GOARCH + " 0",
	} {
		c := exec.CommandContext(t.Context(), "sh", "-c", settings+"go env GOOS GOARCH CGO_ENABLED")
		c.Env = append(os.Environ(), strings.Fields(target)...)
		out, err := c.CombinedOutput()
		if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != want {
			t.Errorf("%s: builds for %s, want %s: %v", target, got, want, err)
		}
	}
}

func TestDockerfileExposesListeners(t *testing.T) {
	var ports []string
	for _, s := range server.Settings {
		if slices.Contains([]string{"http", "grpc", "resp"}, s.Name) { // the admin listener is not exposed
			ports = append(ports, strings.TrimPrefix(s.Default, ":"))
		}
	}
	exposed := strings.Fields(instructions(t)["EXPOSE"][0])
	slices.Sort(ports)
	slices.Sort(exposed)
	if !slices.Equal(ports, exposed) {
		t.Errorf("the image exposes %q, want the listeners' ports %q", exposed, ports)
	}
}
