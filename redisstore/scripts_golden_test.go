package redisstore

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
	"github.com/penstock-io/penstock/redisstore/internal/script"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// assembled returns the scripts of some steps, by names for files, and some of several steps.
func assembled(rows []stepRow) map[string]string {
	mixed := []script.Step{rowOf("token-bucket").lua, rowOf("aligned fixed-window").lua, rowOf("sliding-window").lua}
	var steps []script.Step
	scripts := map[string]string{
		"mark.lua":            script.Mark(),
		"unmark.lua":          script.Unmark(),
		"take-all-batch.lua":  script.TakeAllBatch(mixed),
		"take-each-batch.lua": script.TakeEachBatch(mixed),
	}
	for _, r := range rows {
		name := strings.ReplaceAll(r.lua.Name, " ", "-")
		scripts[name+".lua"] = r.lua.Take()
		if r.hasRecords {
			scripts[name+"-once.lua"] = r.lua.Once()
			scripts[name+"-once-batch.lua"] = r.lua.OnceBatch()
		}
		scripts[name+"-batch.lua"] = r.lua.Batch()
		steps = append(steps, r.lua)
	}
	scripts["take-all.lua"] = script.TakeAll(steps)
	return scripts
}

func rowOf(name string) stepRow {
	return stepRows[slices.IndexFunc(stepRows[:], func(r stepRow) bool { return r.lua.Name == name })]
}

// withGoldenFiles are the rows whose scripts are in files, in order. A later one needs none.
var withGoldenFiles = stepRows[:8]

// TestScriptsMatchGoldenFiles compares assembled scripts with files, where they can be read as they
// run in Redis. The files show how scripts are put together, which does not need every step.
func TestScriptsMatchGoldenFiles(t *testing.T) {
	scripts, dir := assembled(withGoldenFiles), "internal/script/testdata"
	if *update {
		writeScripts(t, dir, scripts)
	}
	for name, got := range scripts {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || got != string(want) {
			t.Errorf("%s differs from its golden file (%v): run go test ./redisstore -run GoldenFiles -update", name, err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != len(scripts) {
		t.Errorf("%s has %d files (%v), want %d", dir, len(files), err, len(scripts))
	}
}

func writeScripts(t *testing.T, dir string, scripts map[string]string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStepsHaveTheirLua(t *testing.T) {
	for _, r := range stepRows {
		if _, err := os.Stat(filepath.Join("internal/script", r.lua.File)); err != nil {
			t.Errorf("%s: %v", r.lua.Name, err)
		}
	}
}

// Each function costs Redis a quarter of a command, so a take under a new ID creates only
// those that it may call.
func TestOnceScriptCreatesFewFunctions(t *testing.T) {
	functions := func(steps ...script.Step) int { return strings.Count(script.TakeAll(steps), "function") }
	for _, r := range stepRows {
		take, _, _ := strings.Cut(r.lua.Once(), "  return reply\nend\n")
		own := functions(r.lua) - functions() - 1
		if n := strings.Count(take, "function") - own; n != 3 {
			t.Errorf("%s: a take under a new ID creates %d functions besides those of its step, want pttl, set and step", r.lua.Name, n)
		}
	}
}

// Proxies that read the text of scripts accept ours. One that knows no command of Redis 7 accepts them without
// the one that asks for the expiry of a key.
func TestScriptsPassCheckOfProxies(t *testing.T) {
	for name, text := range assembled(stepRows[:]) {
		if refusal := redisproxy.CheckScript(text, 70); refusal != "" {
			t.Errorf("%s: %s", name, refusal)
		}
		if refusal := redisproxy.CheckScript(strings.ReplaceAll(text, script.AskExpiry, "nil"), 60); refusal != "" {
			t.Errorf("%s: %s", name, refusal)
		}
	}
}
