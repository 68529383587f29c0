package script

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestScriptsMatchGoldenFiles compares the assembled scripts with testdata, where
// they can be read as they run in Redis.
func TestScriptsMatchGoldenFiles(t *testing.T) {
	scripts := map[string]string{
		"mark.lua":            Mark(),
		"unmark.lua":          Unmark(),
		"take-all.lua":        TakeAll(Steps()),
		"take-all-batch.lua":  TakeAllBatch([]Step{TokenBucket, AlignedWindow, SlidingWindow}),
		"take-each-batch.lua": TakeEachBatch([]Step{TokenBucket, AlignedWindow, SlidingWindow}),
	}
	for _, s := range Steps() {
		name := strings.ReplaceAll(s.String(), " ", "-")
		scripts[name+".lua"] = s.Take()
		if s.HasRecords() {
			scripts[name+"-once.lua"] = s.Once()
			scripts[name+"-once-batch.lua"] = s.OnceBatch()
		}
		scripts[name+"-batch.lua"] = s.Batch()
	}
	dir := "testdata"
	if *update {
		writeScripts(t, dir, scripts)
	}
	for name, got := range scripts {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || got != string(want) {
			t.Errorf("%s differs from its golden file (%v): run go test ./redisstore/internal/script -run GoldenFiles -update", name, err)
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

// Each function costs Redis a quarter of a command, so a take under a new ID creates only
// those that it may call.
func TestOnceScriptCreatesFewFunctions(t *testing.T) {
	for _, s := range Steps() {
		take, _, _ := strings.Cut(s.Once(), "  return reply\nend\n")
		own := strings.Count(s.nested(), "function")
		if n := strings.Count(take, "function") - own; n != 3 {
			t.Errorf("%v: a take under a new ID creates %d functions besides those of its step, want pttl, set and step", s, n)
		}
	}
}
