package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/doctest"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const repository = "../.."

// notRun are the commands in the documents that the tests do not run, by how they begin.
var notRun = map[string]string{
	"penstock serve --rules etcd://": "needs etcd",
	"consul ":                        "needs Consul",
	"etcdctl ":                       "needs etcd",
	"docker ":                        "needs Docker",
	"kubectl ":                       "needs a cluster",
	"helm ":                          "needs a cluster",
	"systemctl ":                     "needs systemd",
	"install ":                       "writes to /etc",
	"go install ":                    "writes to the user's folder",
	"go mod ":                        "changes the user's module",
	"git clone ":                     "needs the network",
	"npm install ":                   "needs a registry",
	"pip install ":                   "needs a registry",
	"go build -o ":                   "writes to /usr/local/bin",
	"cd examples/frameworks ":        "needs the modules of the frameworks",
	"cd bench && ":                   "takes minutes",
	"git tag ":                       "publishes a version",
	"git push ":                      "publishes a version",
	"OTEL_":                          "needs a collector",
	"used = ":                        "is a formula",
}

// runBefore are commands that bring about what a page describes in words.
var runBefore = map[string]string{
	"penstock peek --domain shop user=42": "penstock take --domain shop user=42 --cost 5",

	`penstock override delete shop/user 42 --reason "ticket 4711"`: "penstock override set shop/user 42 ban --reason test",
	`penstock override import plans.csv --reason "plan change 12"`: `printf 'rule,key,limit\nshop/user,42,ban\n' > plans.csv`,
}

// Every command that a help text, a page or a comment shows works: against a daemon with
// the rules of that page or, if it has none, with those of the examples. Pages are found,
// not listed. Addresses, paths of the system and long durations are replaced.
func TestDocumentedCommandsRun(t *testing.T) {
	pages, dir := documentedCommands(t), t.TempDir()
	unused := maps.Clone(notRun)
	for page, commands := range pages {
		pages[page] = slices.DeleteFunc(commands, func(c doctest.Command) bool {
			for prefix := range notRun {
				if strings.HasPrefix(c.Text, prefix) {
					delete(unused, prefix)
					return true
				}
			}
			return false
		})
		if testing.Short() && page != "README.md" && page != "docs/http.md" {
			continue // make unit has them all
		}
		if len(pages[page]) > 0 {
			script := "document '" + page + "'\n" // the whole script
			name := strings.NewReplacer("/", "-", " ", "-").Replace(page)
			if err := os.WriteFile(filepath.Join(dir, name+".txtar"), []byte(script), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for prefix := range unused {
		t.Errorf("no document has a command that begins with %q: remove it from notRun", prefix)
	}
	testscript.Run(t, testscript.Params{
		Dir:      dir,
		Deadline: scriptDeadline(t),
		Setup: func(e *testscript.Env) error {
			setUp(e)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"document": func(ts *testscript.TestScript, _ bool, args []string) { runDocument(ts, pages[args[0]]) },
		},
	})
}

// documentedCommands returns the commands of all documents, by page.
func documentedCommands(t *testing.T) map[string][]doctest.Command {
	t.Helper()
	pages := map[string][]doctest.Command{}
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		page, _ := filepath.Rel(repository, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		commands, err := readCommands(page, path)
		if len(commands) > 0 {
			pages[page] = commands
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for c := range allCommands(rootCommand()) {
		if c.Example == "" {
			continue
		}
		page := c.CommandPath()
		pages[page] = doctest.PageCommands(page, "```sh\n"+c.Example+"\n```\n")
	}
	if len(pages) < 15 {
		t.Errorf("only %d pages have commands: the search is broken", len(pages))
	}
	return pages
}

// readCommands returns the commands in a file. The examples and the benchmarks are
// programs of their own: their comments are about their own listeners.
func readCommands(page, path string) ([]doctest.Command, error) {
	isMarkdown := strings.HasSuffix(page, ".md") && page != "CHANGELOG.md"
	isGo := strings.HasSuffix(page, ".go") && !strings.HasSuffix(page, "_test.go") &&
		!strings.HasPrefix(page, "examples/") && !strings.HasPrefix(page, "bench/")
	if !isMarkdown && !isGo {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil || isMarkdown {
		return doctest.PageCommands(page, string(text)), err
	}
	return doctest.CommentCommands(page, text, "penstock", "curl", "redis-cli")
}

// allCommands yields a command and all below it.
func allCommands(c *cobra.Command) func(yield func(*cobra.Command) bool) {
	return func(yield func(*cobra.Command) bool) {
		if !yield(c) {
			return
		}
		for _, sub := range c.Commands() {
			for c := range allCommands(sub) {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// A documentRun runs the commands of one page.
type documentRun struct {
	ts     *testscript.TestScript
	dir    string
	fences []doctest.Fence
	tls    bool // the daemon uses TLS
}

func runDocument(ts *testscript.TestScript, commands []doctest.Command) {
	r := &documentRun{ts: ts, dir: ts.MkAbs(".")}
	if text, err := os.ReadFile(filepath.Join(repository, commands[0].Page)); err == nil {
		r.fences = doctest.Fences(commands[0].Page, string(text))
	}
	makeCertificate(ts, false, []string{"tls"})
	r.writeFiles()
	r.startDaemon(false)
	for _, c := range commands {
		r.run(c)
	}
}

// writeFiles writes the files that commands name, and wrappers of the programs.
func (r *documentRun) writeFiles() {
	for domain, text := range r.allRules() {
		r.write("etc/penstock/rules/"+domain+".yaml", text, 0o600)
	}
	r.ts.Check(os.Symlink("etc/penstock/rules", r.ts.MkAbs("rules")))
	r.write("token", "open sesame\n", 0o600)
	r.write("access.log", accessLog(), 0o600)
	r.write("flow.json", `[{"resource": "pay", "threshold": 5, "statIntervalInMs": 1000}]`, 0o600)
	r.write("backup", "#!/bin/sh\n", 0o700)
	path := r.ts.Getenv("PATH")
	for program, options := range map[string]string{
		"penstock":  `"$@"`,
		"redis-cli": `-e "$@"`,
		"curl":      `-sS -w '%{stderr}\nstatus %{http_code}\n' "$@"`,
	} {
		found, err := findIn(path, program)
		r.ts.Check(err)
		// The last line of the trace is the program's exit code.
		r.write("bin/"+program, fmt.Sprintf("#!/bin/sh\n%s %s 2>>\"$TRACE\"\ncode=$?\necho \"%s $code\" >>\"$TRACE\"\nexit $code\n", found, options, program), 0o700)
	}
}

// write writes a file. No other test may start a process meanwhile: that would hold the file open
// until it runs its program, and a script that is open for writing cannot be run.
func (r *documentRun) write(name, text string, mode fs.FileMode) {
	path := r.ts.MkAbs(name)
	r.ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	r.ts.Check(os.WriteFile(path, []byte(text), mode))
}

var domainLine = regexp.MustCompile(`(?m)^domain: *(\w+)`)

// allRules returns rule files by domain: those of the examples, and those of the page.
// Of several for one domain the last counts.
func (r *documentRun) allRules() map[string]string {
	found := map[string]string{}
	for _, text := range append([]string{r.exampleRules()}, r.pageRules(0)...) {
		found[domainLine.FindStringSubmatch(text)[1]] = text
	}
	return found
}

func (r *documentRun) exampleRules() string {
	text, err := os.ReadFile(filepath.Join(repository, "examples", "rules.yaml"))
	r.ts.Check(err)
	return string(text)
}

// pageRules returns the rule files on the page, or those above a line.
func (r *documentRun) pageRules(above int) (files []string) {
	for _, f := range r.fences {
		if f.Info == "yaml" && domainLine.MatchString(f.Body) && (above == 0 || f.Line < above) {
			files = append(files, f.Body)
		}
	}
	return files
}

// rulesFor returns the rule file that a command is about: the last one above it, or the
// first of the page, or that of the examples.
func (r *documentRun) rulesFor(c doctest.Command) string {
	if above := r.pageRules(c.Line); len(above) > 0 {
		return above[len(above)-1]
	}
	if all := r.pageRules(0); len(all) > 0 {
		return all[0]
	}
	return r.exampleRules()
}

// startDaemon starts a daemon, or one with another use of TLS.
func (r *documentRun) startDaemon(useTLS bool) {
	if d := daemonOf(r.ts); d.isRunning() {
		r.ts.Check(d.command.Process.Signal(syscall.SIGTERM))
		<-d.exited
	}
	flags := []string{"--rules", "etc/penstock/rules"}
	if useTLS {
		for _, listener := range []string{"http", "admin", "grpc"} {
			flags = append(flags, "--"+listener+"-tls-cert", "tls.crt", "--"+listener+"-tls-key", "tls.key")
		}
	}
	startDaemon(r.ts, false, flags)
	r.tls = useTLS
	r.write("etc/penstock/penstock.yaml", "admin: "+r.ts.Getenv("ADMIN")+"\n", 0o600)
}

// runnable matches the commands that are run. All others must be in notRun: a page may
// show commands that change the machine.
var runnable = regexp.MustCompile(`^(if )?(penstock|\.bin/penstock|curl|redis-cli) `)

// run runs a command and checks its result.
func (r *documentRun) run(c doctest.Command) {
	if strings.HasPrefix(c.Text, "make ") {
		r.checkMake(c)
		return
	}
	if !runnable.MatchString(c.Text) {
		r.ts.Fatalf("%s:%d: %s\nis no command that this test can run: add it to notRun, with the reason", c.Page, c.Line, c.Text)
	}
	if needsTLS := strings.Contains(c.Text, "https://"); needsTLS != r.tls {
		r.startDaemon(needsTLS)
	}
	r.write("rules.yaml", r.rulesFor(c), 0o600)
	r.write("new.yaml", r.rulesFor(c), 0o600)
	if before := runBefore[c.Text]; before != "" {
		r.ts.Check(r.shell(r.replaceAddresses(before)).Run())
	}
	r.ts.Check(os.RemoveAll(r.ts.MkAbs("trace")))
	text := r.replaceAddresses(r.replacePaths(c.Text))
	if strings.HasPrefix(text, "curl ") && !strings.Contains(text, "127.0.0.1:") {
		r.ts.Fatalf("%s:%d: %s\ndoes not call the daemon", c.Page, c.Line, c.Text)
	}
	if strings.HasPrefix(text, "penstock serve") {
		r.serve(c, text)
		return
	}
	output, err := r.shell(text).Output()
	trace, _ := os.ReadFile(r.ts.MkAbs("trace"))
	if problem := checkTrace(string(trace), c.Output); problem != "" {
		r.ts.Fatalf("%s:%d: %s\nrun as %s\n%s: %v\n%s%s", c.Page, c.Line, c.Text, text, problem, err, output, trace)
	}
	if want, got := shape(c), shapeOf(c, string(output)); want != "" && strings.Contains(string(trace), "penstock ") && got != want {
		r.ts.Fatalf("%s:%d: %s\nprints\n%swhere the page has\n%s", c.Page, c.Line, c.Text, output, c.Output)
	}
}

// shell returns a shell that runs a command in the directory of the page.
func (r *documentRun) shell(command string) *exec.Cmd {
	sh := exec.Command("sh", "-c", command)
	sh.Dir = r.dir
	sh.Env = []string{
		"PATH=" + r.ts.MkAbs("bin") + ":" + r.ts.Getenv("PATH"), "TRACE=" + r.ts.MkAbs("trace"), "PENSTOCK_TOKEN=open sesame",
	}
	for _, listener := range listenerPorts {
		sh.Env = append(sh.Env, "PENSTOCK_"+listener+"="+r.ts.Getenv(listener))
	}
	return sh
}

// checkMake checks that make knows the target.
func (r *documentRun) checkMake(c doctest.Command) {
	command := exec.Command("sh", "-c", strings.Replace(c.Text, "make ", "make --dry-run --no-print-directory ", 1))
	command.Dir = repository
	if output, err := command.CombinedOutput(); err != nil {
		r.ts.Fatalf("%s:%d: %s: %v\n%s", c.Page, c.Line, c.Text, err, output)
	}
}

var (
	listenerURL   = regexp.MustCompile(`((?:https?|grpcs?)://)?(?:localhost|127\.0\.0\.1|10\.\d+\.\d+\.\d+):(8080|8081|6380|6070)\b`)
	redisPort     = regexp.MustCompile(`redis-cli -p 6380\b`)
	redisURL      = regexp.MustCompile(`redis://[\w.]+:6379`)
	redirection   = regexp.MustCompile(`> [~/]?[^\s"]+$`)
	benchDuration = regexp.MustCompile(`penstock bench (\w+)(.*?)(?: --duration \S+|( >)|$)`)
)

var listenerPorts = map[string]string{"8080": "HTTP", "8081": "GRPC", "6380": "RESP", "6070": "ADMIN"}

// replaceAddresses replaces the addresses of listeners by those of the daemon or, for a
// server to start, by free ports; and that of Redis.
func (r *documentRun) replaceAddresses(text string) string {
	serves := strings.HasPrefix(text, "penstock serve")
	text = listenerURL.ReplaceAllStringFunc(text, func(found string) string {
		m := listenerURL.FindStringSubmatch(found)
		if serves {
			return "127.0.0.1:0"
		}
		return m[1] + r.ts.Getenv(listenerPorts[m[2]])
	})
	host, port, _ := strings.Cut(r.ts.Getenv("RESP"), ":")
	text = redisPort.ReplaceAllString(text, "redis-cli -h "+host+" -p "+port)
	return redisURL.ReplaceAllStringFunc(text, func(string) string {
		if d := daemonOf(r.ts); d.redis == nil {
			startRedis(r.ts, d)
		}
		return r.ts.Getenv("REDIS")
	})
}

// replacePaths replaces what a test must not touch, and what would take long.
func (r *documentRun) replacePaths(text string) string {
	text = strings.ReplaceAll(text, ".bin/penstock ", "penstock ")
	text = strings.ReplaceAll(text, " /etc/penstock/", " etc/penstock/")
	text = strings.ReplaceAll(text, " /var/lib/penstock", " data")
	text = redirection.ReplaceAllString(text, "> /dev/null")
	return benchDuration.ReplaceAllString(text, "penstock bench $1$2 --duration 100ms$3")
}

// serve starts a server, waits until it is ready, and stops it.
func (r *documentRun) serve(c doctest.Command, text string) {
	sh := r.shell("exec " + text)
	sh.Env = []string{"PATH=" + r.ts.Getenv("PATH")} // without the wrappers, so that the signal reaches the server
	for _, listener := range listenerPorts {
		sh.Env = append(sh.Env, "PENSTOCK_"+listener+"=127.0.0.1:0")
	}
	log := r.ts.MkAbs("serve.log")
	file, err := os.Create(log)
	r.ts.Check(err)
	defer func() { _ = file.Close() }()
	sh.Stdout, sh.Stderr = file, file
	r.ts.Check(sh.Start())
	server := &daemon{command: sh, log: log, exited: make(chan struct{})}
	go func() {
		_ = sh.Wait() // the log says why
		close(server.exited)
	}()
	r.ts.Defer(func() {
		_ = sh.Process.Kill()
		<-server.exited
	})
	server.awaitLogLine(r.ts, `(?m)msg=ready$`)
	r.ts.Check(sh.Process.Signal(syscall.SIGTERM))
	<-server.exited
	if code := sh.ProcessState.ExitCode(); code != 0 {
		r.ts.Fatalf("%s:%d: %s\nrun as %s\nexited with %d:\n%s", c.Page, c.Line, c.Text, text, code, server.logText(r.ts))
	}
}

var traceLine = regexp.MustCompile(`(?m)^(penstock|curl|redis-cli|status) (\d+)$`)

// checkTrace returns what is wrong with the exit codes of programs and the statuses of
// HTTP responses. The page may show a status that means an error.
func checkTrace(trace, shown string) string {
	lines := traceLine.FindAllStringSubmatch(trace, -1)
	if len(lines) == 0 {
		return "ran neither penstock nor curl nor redis-cli"
	}
	for _, m := range lines {
		code, _ := strconv.Atoi(m[2])
		switch {
		case m[1] == "status" && code >= 400 && code != 429 && !strings.Contains(shown, m[2]):
			return "got status " + m[2]
		case m[1] == "penstock" && code == exitNegative: // an answer, such as denied
		case m[1] != "status" && code != 0:
			return m[1] + " exited with " + m[2]
		}
	}
	return ""
}

// shape returns what the output that a page shows must have in common with that of the
// command: all of it for rules, which do not depend on the past; else the words of its
// lines, without numbers and times.
func shape(c doctest.Command) string { return shapeOf(c, c.Output) }

var measured = regexp.MustCompile(`[0-9][0-9:.,/%-]*[a-zµ]*[0-9.a-z]*|[▁▂▃▄▅▆▇█]+`)

func shapeOf(c doctest.Command, output string) (words string) {
	if strings.HasPrefix(c.Text, "penstock rules ") {
		return output
	}
	for line := range strings.Lines(output) {
		words += strings.Join(strings.Fields(measured.ReplaceAllString(line, "#")), " ") + "\n"
	}
	return words
}

var (
	inlineCommand = regexp.MustCompile("`penstock ([^`]+)`")
	quotedLimit   = regexp.MustCompile(`"(\d+/[^"]+)"`)
)

// Commands in the text of a page have subcommands and flags that exist.
func TestDocumentsNameExistingCommands(t *testing.T) {
	root := rootCommand()
	found := 0
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".md") || d.Name() == "CHANGELOG.md":
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range inlineCommand.FindAllStringSubmatch(string(text), -1) {
			found++
			checkCommandExists(t, root, path, m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 5 {
		t.Errorf("only %d commands found: the search is broken", found)
	}
}

func checkCommandExists(t *testing.T, root *cobra.Command, path, text string) {
	t.Helper()
	c, rest, err := root.Find(strings.Fields(text))
	if err != nil || c == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		t.Errorf("%s: penstock %s: no such command", path, text)
		return
	}
	c.InitDefaultHelpFlag()
	for _, word := range rest {
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && c.Flags().Lookup(name) == nil && c.InheritedFlags().Lookup(name) == nil {
			t.Errorf("%s: penstock %s: %s has no flag --%s", path, text, c.CommandPath(), name)
		}
	}
}

// The limits that help texts show are valid.
func TestHelpShowsValidLimits(t *testing.T) {
	found := 0
	for c := range allCommands(rootCommand()) {
		text := c.Long + c.Example
		c.Flags().VisitAll(func(f *pflag.Flag) { text += f.Usage })
		for _, m := range quotedLimit.FindAllStringSubmatch(text, -1) {
			found++
			if _, err := penstock.ParseLimit(m[1]); err != nil {
				t.Errorf("%s: %v", c.CommandPath(), err)
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d limits found: the search is broken", found)
	}
}
