// Package demotest runs the commands in the comments of the examples.
package demotest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/doctest"
)

var announced = regexp.MustCompile(`(?:127\.0\.0\.1|\[::1\]):\d+`)

// RunComments starts each example below the current directory, and checks that the curl
// commands in its comment reach one of its handlers. The tests of the examples check the
// answers. It fails if fewer than so many examples have such commands.
func RunComments(t *testing.T, atLeast int) {
	t.Helper()
	programs, err := filepath.Glob("*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, program := range programs {
		commands := curlCommands(t, program)
		if len(commands) == 0 {
			continue
		}
		found++
		address := startExample(t, filepath.Dir(program))
		for _, c := range commands {
			checkCurl(t, c, address)
		}
	}
	if found < atLeast {
		t.Errorf("%d examples have curl commands, want at least %d", found, atLeast)
	}
}

func curlCommands(t *testing.T, program string) []doctest.Command {
	t.Helper()
	source, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	commands, err := doctest.CommentCommands(program, source, "curl -i")
	if err != nil {
		t.Fatal(err)
	}
	return commands
}

// startExample starts an example and returns the address that it prints.
func startExample(t *testing.T, dir string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), dir)
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./"+dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	example := exec.CommandContext(t.Context(), binary)
	example.Stderr = os.Stderr
	stdout, err := example.StdoutPipe()
	if err == nil {
		err = example.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = example.Process.Kill()
		_ = example.Wait() // it was killed
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	address := announced.FindString(line)
	if address == "" {
		t.Fatalf("%s: %v: no address in %q", dir, err, line)
	}
	return address
}

// checkCurl runs a curl command against the example.
func checkCurl(t *testing.T, c doctest.Command, address string) {
	t.Helper()
	command := strings.Replace(c.Text, "curl -i", `curl -sS --max-time 60 -o /dev/null -w '%{http_code}'`, 1)
	output, err := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, "localhost:8080", address)).CombinedOutput()
	status := string(output)
	if err != nil || status == "404" || status == "405" || !strings.Contains(command, "localhost:8080") {
		t.Errorf("%s:%d: %s: got %s, %v", c.Page, c.Line, c.Text, status, err)
	}
}
