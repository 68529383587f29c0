//go:build integration

// Package clients_test runs the test programs of the clients in other languages against
// real daemons.
package clients_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/doctest"
	"github.com/penstock-io/penstock/internal/redistest"
)

// typescript is where make setup-integration installs the compiler.
const typescript = "../.bin/typescript/node_modules/typescript/bin/tsc"

const token = "open sesame"

// The programs use keys of their own, so both run against one daemon of each store.
func TestIntegrationClientsAgreeWithDaemon(t *testing.T) {
	program := buildDaemon(t)
	redis := redistest.StartForTest(t, redistest.Options{})
	for store, flags := range map[string][]string{
		"memory": nil,
		// A short timeout would let the fallback decide on a busy machine.
		"redis": {"--store", "redis://" + redis.Addr, "--redis-timeout", "30s"},
	} {
		d := startDaemon(t, program, flags)
		t.Run(store+"/typescript", func(t *testing.T) {
			runClient(t, d, exec.CommandContext(t.Context(), "node", "typescript/test/client.test.js"))
		})
		t.Run(store+"/typescript hang-ups", func(t *testing.T) {
			command := exec.CommandContext(t.Context(), "node", "typescript/test/hangup.test.js")
			command.Env = append(os.Environ(), "PENSTOCK=http://"+d.http)
			check(t, command)
		})
		t.Run(store+"/python", func(t *testing.T) {
			runClient(t, d, pythonTest(t, "test_client.py"))
		})
		t.Run(store+"/python hang-ups", func(t *testing.T) {
			command := pythonTest(t, "test_hangup.py")
			command.Env = append(command.Env, "PENSTOCK=http://"+d.http)
			check(t, command)
		})
		t.Run(store+"/pages", func(t *testing.T) { runPages(t, d) })
	}
}

func pythonTest(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), python(t), "-B", "python/tests/"+name)
	command.Env = append(os.Environ(), "PYTHONPATH="+absolute(t, "python"))
	return command
}

// python returns an interpreter that has an ASGI server. It may be that of Debian, for which
// make setup-integration installs one, although the path has another one first.
func python(t *testing.T) (program string) {
	t.Helper()
	for _, program := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), program, "-c", "import starlette, uvicorn").Run() == nil {
			return program
		}
	}
	t.Fatal("no Python has starlette and uvicorn (make setup-integration installs them)")
	return ""
}

// runPages runs the program on each client's page as it is shown.
func runPages(t *testing.T, d *daemon) {
	t.Helper()
	for _, client := range []struct{ folder, fence, program, flags string }{
		{"typescript", "js", "node", "--input-type=module -e"},
		{"python", "python", python(t), "-B -c"},
	} {
		page, err := os.ReadFile(filepath.Join(client.folder, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		ran := 0
		for _, fence := range doctest.Fences(client.folder, string(page)) {
			if fence.Info == client.fence {
				text := strings.ReplaceAll(fence.Body, "localhost:8080", d.http)
				command := exec.CommandContext(t.Context(), client.program, append(strings.Fields(client.flags), text)...)
				command.Dir = client.folder
				check(t, command)
				ran++
			}
		}
		if ran == 0 {
			t.Errorf("the page of %s has no block in %s", client.folder, client.fence)
		}
	}
}

func TestIntegrationTypeScriptDeclarationsMatch(t *testing.T) {
	check(t, exec.CommandContext(t.Context(), "node", typescript, "-p", "typescript"))
}

// Requests have the fields that the daemon reads, but for what is a verb of its own or other values of a field.
func TestIntegrationClientsHaveEveryField(t *testing.T) {
	text, err := os.ReadFile("../server/httpapi/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for schema, class := range map[string]string{"ByLimit": "Request", "ByRules": "RuleRequest"} {
		names := openAPIFields(string(text), schema)
		if got := pythonFields(t, class); !slices.Equal(got, names) {
			t.Errorf("%s in Python has the fields %q, want those of %s, %q", class, got, schema, names)
		}
		if got := typeScriptFields(t, class); !slices.Equal(got, names) {
			t.Errorf("%s in TypeScript has the fields %q, want those of %s, %q", class, got, schema, names)
		}
	}
}

func openAPIFields(text, schema string) (names []string) {
	_, text, _ = strings.Cut(text, "\n    "+schema+":\n")
	_, text, _ = strings.Cut(text, "\n      properties:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	for _, field := range regexp.MustCompile(`(?m)^ {8}(\w+):`).FindAllStringSubmatch(text, -1) {
		if !slices.Contains([]string{"key_base64", "new_id", "reset"}, field[1]) {
			names = append(names, field[1])
		}
	}
	slices.Sort(names)
	return names
}

func pythonFields(t *testing.T, class string) []string {
	t.Helper()
	program := "import penstock; print(*sorted(penstock." + class + ".__dataclass_fields__))"
	command := exec.CommandContext(t.Context(), "python3", "-B", "-c", program)
	command.Dir = "python"
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v (make setup-integration installs it)", command.Args, err)
	}
	return strings.Fields(string(out))
}

// typeScriptFields returns the names as in JSON. A request for a limit is two interfaces.
func typeScriptFields(t *testing.T, class string) (names []string) {
	t.Helper()
	text, err := os.ReadFile("typescript/index.d.ts")
	if err != nil {
		t.Fatal(err)
	}
	if class == "Request" {
		class = "(?:LimitRequest|TakeRequest)"
	}
	capital := regexp.MustCompile("[A-Z]")
	for _, declared := range regexp.MustCompile(`(?s)interface `+class+`\b.*?\n}`).FindAllString(string(text), -1) {
		for _, field := range regexp.MustCompile(`(?m)^  (\w+)\??:`).FindAllStringSubmatch(declared, -1) {
			names = append(names, capital.ReplaceAllStringFunc(field[1], func(c string) string { return "_" + strings.ToLower(c) }))
		}
	}
	slices.Sort(names)
	return names
}

func TestIntegrationPythonTypesMatch(t *testing.T) {
	command := exec.CommandContext(t.Context(), "mypy", "--cache-dir", "../../.bin/mypy", "penstock", "examples", "tests")
	command.Dir = "python"
	check(t, command)
}

func check(t *testing.T, command *exec.Cmd) {
	t.Helper()
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %v (make setup-integration installs it)\n%s", command.Args, err, out)
	}
}

// runClient runs a test program. Its lines "kill" and "start" are for the daemon, and it
// waits for a line after each.
func runClient(t *testing.T, d *daemon, command *exec.Cmd) {
	t.Helper()
	if command.Env == nil {
		command.Env = os.Environ()
	}
	command.Env = append(command.Env, "PENSTOCK=http://"+d.http, "TOKEN="+token)
	redistest.DieWithParent(command)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	command.Stderr = &stderr
	if err := command.Start(); err != nil {
		t.Fatalf("%v (make setup-integration installs it)", err)
	}
	kills := serveClient(t, d, output, input)
	if err := command.Wait(); err != nil {
		t.Errorf("%v: %v\n%s", command.Args, err, stderr.String())
	}
	if kills != 1 {
		t.Errorf("the daemon was killed %d times, want once: did all tests run?", kills)
	}
}

// serveClient does what the program asks for until its output ends. It returns how often
// it killed the daemon.
func serveClient(t *testing.T, d *daemon, output io.Reader, input io.Writer) (kills int) {
	t.Helper()
	for lines := bufio.NewScanner(output); lines.Scan(); {
		switch line := lines.Text(); line {
		case "kill":
			d.kill()
			kills++
		case "start":
			d.start(t)
		default:
			t.Log(line)
			continue
		}
		if _, err := fmt.Fprintln(input); err != nil {
			t.Error(err)
		}
	}
	return kills
}

// A daemon keeps its address when it is started again.
type daemon struct {
	http    string
	args    []string
	log     *os.File
	command *exec.Cmd
}

func buildDaemon(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "penstock")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/penstock").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func startDaemon(t *testing.T, program string, flags []string) *daemon {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{http: "127.0.0.1:" + strconv.Itoa(redistest.FreePort(t)), log: log}
	d.args = append([]string{
		program, "serve", "--http", d.http, "--grpc", "", "--resp", "", "--admin", "",
		"--token", token, "--rules", writeRules(t), "--audit-log", filepath.Join(t.TempDir(), "audit.log"),
	}, flags...)
	t.Cleanup(func() { d.end(t) })
	d.start(t)
	return d
}

// writeRules writes the rules of the examples, but for a day in Shanghai: it may end within a test.
func writeRules(t *testing.T) (path string) {
	t.Helper()
	text, err := os.ReadFile("../examples/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const day = "5/day zone=Asia/Shanghai fixed-window"
	if !strings.Contains(string(text), day) {
		t.Fatalf("no rule has the limit %s", day)
	}
	path = filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), day, "5/366d fixed-window")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.command = exec.Command(d.args[0], d.args[1:]...)
	d.command.Stderr = d.log
	redistest.DieWithParent(d.command)
	if err := d.command.Start(); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the daemon answers", d.answers)
}

func (d *daemon) answers() bool {
	response, err := http.Get("http://" + d.http + "/healthcheck")
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

func (d *daemon) kill() {
	_ = d.command.Process.Kill()
	_ = d.command.Wait() // it was killed
}

// end kills the daemon and, if the test has failed, shows its log.
func (d *daemon) end(t *testing.T) {
	d.kill()
	text, err := os.ReadFile(d.log.Name())
	if t.Failed() {
		t.Logf("log of the daemon: %v\n%s", err, text)
	}
	_ = d.log.Close()
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
