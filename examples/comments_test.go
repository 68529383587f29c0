package examples_test

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

// The curl commands in the comment of an example reach a handler of it. The tests of the
// examples check the answers.
func TestCommentsOfExamplesRun(t *testing.T) {
	programs, err := filepath.Glob("*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, program := range programs {
		source, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		commands, err := doctest.CommentCommands(program, source, "curl -i")
		if err != nil {
			t.Fatal(err)
		}
		if len(commands) == 0 {
			continue
		}
		found++
		address := startExample(t, filepath.Dir(program))
		for _, c := range commands {
			checkCurl(t, c, address)
		}
	}
	if found < 4 {
		t.Errorf("only %d examples have curl commands: the search is broken", found)
	}
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
