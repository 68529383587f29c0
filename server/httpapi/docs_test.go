package httpapi_test

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
)

var update = flag.Bool("update", false, "write the answers of the commands into docs/http.md")

const httpPage = "../../docs/http.md"

// pageAddress is the address of the daemon on the page.
const pageAddress = "localhost:8080"

// A command on the page begins with a dollar sign. What follows, up to the next
// command, is its output.
var pageCommand = regexp.MustCompile(`(?m)^\$ (.*)\n((?:[^$\x60].*\n|\n)*)`)

func TestHTTPPageShowsWhatCommandsPrint(t *testing.T) {
	page, address := readPage(t), servePage(t)
	commands := 0
	updated := consoleBlocks.ReplaceAllStringFunc(page, func(block string) string {
		return pageCommand.ReplaceAllStringFunc(block, func(shown string) string {
			commands++
			m := pageCommand.FindStringSubmatch(shown)
			got := runPageCommand(t, m[1], address)
			if got != m[2] && !*update {
				t.Errorf("%s\nprints\n%swant, or run with -update:\n%s", m[1], got, m[2])
			}
			return "$ " + m[1] + "\n" + got
		})
	})
	if want := strings.Count(page, "\n$ "); commands != want || commands < 10 {
		t.Errorf("ran %d of %d commands", commands, want)
	}
	if *update && updated != page {
		if err := os.WriteFile(httpPage, []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var consoleBlocks = regexp.MustCompile("(?s)```console\n.*?```\n")

func readPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(httpPage)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// servePage serves the rules of make run and returns the address. The clock stands
// still, so that every answer can be predicted.
func servePage(t *testing.T) (address string) {
	t.Helper()
	set, err := rules.Load("../../examples/rules.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(frozenMemory(), &engine.Options{})
	e.SetRules(set)
	return strings.TrimPrefix(serve(t, newServer(t, e, nil)), "http://")
}

// elided are the headers that the page does not show: one is the time of day, the other
// says nothing to a reader.
var elided = regexp.MustCompile(`(?m)^(Date|Content-Length): .*\n`)

// runPageCommand runs a command, with the address of the server in place of the
// page's, and returns what it prints.
func runPageCommand(t *testing.T, command, address string) string {
	t.Helper()
	if !strings.HasPrefix(command, "curl ") || !strings.Contains(command, pageAddress) {
		t.Fatalf("%s: want curl and %s", command, pageAddress)
	}
	command = strings.Replace(command, "curl ", "curl --silent --show-error --max-time 60 ", 1)
	command = strings.ReplaceAll(command, pageAddress, address)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v (install curl)\n%s", command, err, out)
	}
	text := strings.ReplaceAll(string(out), "\r\n", "\n")
	text = elided.ReplaceAllString(text, "")
	return strings.TrimRight(text, "\n") + "\n"
}

// The page has every field of a request and of the answer, every parameter of
// /v1/auth, and every status.
func TestHTTPPageNamesEverything(t *testing.T) {
	page := readPage(t)
	s, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	wanted := slices.Concat(httpapi.Parameters(), s.fields("/components/schemas/Decision"))
	for _, fields := range httpapi.Fields() {
		wanted = append(wanted, fields...)
	}
	for _, name := range wanted {
		if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, `"`+name+`"`) {
			t.Errorf("the page does not have the field %s", name)
		}
	}
	for _, e := range httpapi.Endpoints() {
		if !strings.Contains(page, e.Path) {
			t.Errorf("the page does not have the path %s", e.Path)
		}
	}
	statuses := slices.Concat(s.Names("/paths/~1v1~1take/post/responses"), s.Names("/paths/~1v1~1auth/get/responses"))
	for _, status := range statuses {
		if !regexp.MustCompile(`(?m)^\|[ 0-9,]*\b` + status + `\b`).MatchString(page) {
			t.Errorf("the table of status codes does not have %s", status)
		}
	}
	if len(wanted) < 20 || len(statuses) < 8 {
		t.Errorf("only %d names and %d statuses found: the search is broken", len(wanted), len(statuses))
	}
}
