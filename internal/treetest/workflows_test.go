package treetest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// This file checks with what the tests run elsewhere: the actions and the Go releases of CI, and the Go release of
// each module. It reads workflows line by line, because YAML is a dependency of the daemon alone.

const workflowDir = ".github/workflows"

// setupGo is the action that installs a Go release.
const setupGo = "actions/setup-go"

// fakeWorkflow returns a tree with a workflow.
func fakeWorkflow(matrix, setup, version string) fs.FS {
	text := "jobs:\n  a:\n    strategy:\n      matrix:\n        go: " + matrix + " # releases\n" +
		"    steps:\n      - run: make\n" +
		"      - uses: " + setup + " # v7\n        with:\n          go-version: " + version + "\n"
	return fstest.MapFS{workflowDir + "/a.yml": {Data: []byte(text)}}
}

// A tag can be moved to other code, which then runs with the rights of the job.
func TestWorkflowsPinActions(t *testing.T) {
	t.Parallel()
	for _, name := range unpinned(t, os.DirFS("../..")) {
		t.Errorf("%s: want the 40 digits of a commit", name)
	}

	hash := strings.Repeat("0a", 20)
	for _, version := range []string{"", "@v7", "@main", "@" + hash[1:], "@" + hash + "0", "@" + strings.ToUpper(hash)} {
		action := setupGo + version
		want := []string{workflowDir + "/a.yml uses " + action}
		if got := unpinned(t, fakeWorkflow("[]", action, "")); !slices.Equal(got, want) {
			t.Errorf("actions of the fake tree that are not pinned: got %q, want %q", got, want)
		}
	}
	for _, action := range []string{setupGo + "@" + hash, "'" + setupGo + "@" + hash + "'", "./.github/actions/own"} {
		if got := unpinned(t, fakeWorkflow("[]", action, "")); len(got) != 0 {
			t.Errorf("%s: got %q, want no complaint", action, got)
		}
	}
	job := "jobs: {a: {uses: \"other/b/.github/workflows/c.yml@v1\"}}\n"
	other := fstest.MapFS{workflowDir + "/b.yaml": {Data: []byte(job)}}
	if got := unpinned(t, other); len(got) != 1 {
		t.Errorf("a workflow of another repository: got %q, want one complaint", got)
	}
}

var (
	usesField = regexp.MustCompile(`(?m)^[^#\n]*\buses:[ \t]*["']?([^\s"'}]*)`)
	isPinned  = regexp.MustCompile(`^\./|@[0-9a-f]{40}$`)
)

// unpinned returns the actions that are not named by a commit. Those of this repository are of the commit under test.
func unpinned(t *testing.T, tree fs.FS) (names []string) {
	t.Helper()
	for file, text := range workflows(t, tree) {
		for _, action := range fields(usesField, text) {
			if !isPinned.MatchString(action) {
				names = append(names, file+" uses "+action)
			}
		}
	}
	return names
}

// The Go team supports two releases, and so do we.
func TestWorkflowsRunBothGoReleases(t *testing.T) {
	t.Parallel()
	for _, complaint := range missingReleases(t, os.DirFS("../..")) {
		t.Error(complaint)
	}

	const both, ofMatrix = "[stable, oldstable]", "${{ matrix.go }}"
	for _, c := range []struct {
		matrix, setup, version string
		want                   int
	}{
		{both, setupGo + "@v7", ofMatrix, 0},
		{"[oldstable, stable, '1.26']", setupGo + "@v7", ofMatrix, 0},
		{"[stable]", setupGo + "@v7", ofMatrix, 1},
		{"[oldstable, '1.26']", setupGo + "@v7", ofMatrix, 1},
		{"stable", setupGo + "@v7", ofMatrix, 1},
		{both, setupGo + "@v7", "stable", 1},
		{both, "actions/checkout@v7", ofMatrix, 1},
	} {
		if got := missingReleases(t, fakeWorkflow(c.matrix, c.setup, c.version)); len(got) != c.want {
			t.Errorf("%+v: got %q, want %d complaints", c, got, c.want)
		}
	}
}

var (
	matrixField  = regexp.MustCompile(`(?m)^[ \t]+go:[ \t]*\[([^\]\n]*)\]`)
	versionField = regexp.MustCompile(`(?m)^[ \t]+go-version:[ \t]*([^#\n]*)`)
)

// missingReleases returns which workflows do not run with both releases.
func missingReleases(t *testing.T, tree fs.FS) (complaints []string) {
	t.Helper()
	runs := false
	for file, text := range workflows(t, tree) {
		if !strings.Contains(text, "uses: "+setupGo+"@") {
			continue
		}
		runs = true
		matrices, versions := fields(matrixField, text), fields(versionField, text)
		if !haveBoth(matrices) || len(versions) == 0 || slices.ContainsFunc(versions, isNotOfMatrix) {
			complaints = append(complaints, fmt.Sprintf("%s: runs with Go %q of %q", file, versions, matrices))
		}
	}
	if !runs {
		complaints = append(complaints, "no workflow runs with Go")
	}
	return complaints
}

// haveBoth reports whether there are matrices, all of them with both releases.
func haveBoth(matrices []string) bool {
	for _, m := range matrices {
		releases := strings.Split(strings.ReplaceAll(m, " ", ""), ",")
		if !slices.Contains(releases, "stable") || !slices.Contains(releases, "oldstable") {
			return false
		}
	}
	return len(matrices) > 0
}

func isNotOfMatrix(version string) bool { return version != "${{ matrix.go }}" }

// fields returns what the group of a pattern matches, again and again.
func fields(pattern *regexp.Regexp, text string) (all []string) {
	for _, found := range pattern.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.TrimSpace(found[1]))
	}
	return all
}

// workflows returns the text of all workflows by file.
func workflows(t *testing.T, tree fs.FS) map[string]string {
	t.Helper()
	files, err := fs.ReadDir(tree, workflowDir)
	if err != nil || len(files) == 0 {
		t.Fatalf("the workflows are %v, %v, want some", files, err)
	}
	all := map[string]string{}
	for _, f := range files {
		name := path.Join(workflowDir, f.Name())
		all[name] = readText(t, tree, name)
	}
	return all
}

// Nested modules are tested with the release that the root is built with: each would download another otherwise.
func TestModulesHaveTheGoReleaseOfTheRoot(t *testing.T) {
	t.Parallel()
	for _, complaint := range otherReleases(t, os.DirFS("../..")) {
		t.Error(complaint)
	}

	mod := func(lines string) *fstest.MapFile { return &fstest.MapFile{Data: []byte("module a\n\n" + lines)} }
	fake := fstest.MapFS{
		"go.mod":            mod("go 1.26.0\n\ntoolchain go1.26.11\n"),
		"same/go.mod":       mod("go 1.26.0\n\ntoolchain go1.26.11\n\nrequire b v1.0.0\n"),
		"older/go.mod":      mod("go 1.25.0\n\ntoolchain go1.26.11\n"),
		"patch/go.mod":      mod("go 1.26.0\n\ntoolchain go1.26.10\n"),
		"without/go.mod":    mod("go 1.26.0\n"),
		"testdata/a/go.mod": mod("go 1.20\n"),
	}
	want := []string{
		`older/go.mod: has ["go 1.25.0" "toolchain go1.26.11"], and the root ["go 1.26.0" "toolchain go1.26.11"]`,
		`patch/go.mod: has ["go 1.26.0" "toolchain go1.26.10"], and the root ["go 1.26.0" "toolchain go1.26.11"]`,
		`without/go.mod: has ["go 1.26.0"], and the root ["go 1.26.0" "toolchain go1.26.11"]`,
	}
	if got := otherReleases(t, fake); !slices.Equal(got, want) {
		t.Errorf("modules of the fake tree with another release: got %q, want %q", got, want)
	}
	if got := otherReleases(t, fstest.MapFS{"go.mod": mod("go 1.26.0\n")}); len(got) != 1 {
		t.Errorf("a root without a toolchain: got %q, want one complaint", got)
	}
}

var releaseLine = regexp.MustCompile(`(?m)^(?:go|toolchain) \S+`)

// otherReleases returns the modules with other go and toolchain lines than the root.
func otherReleases(t *testing.T, tree fs.FS) (complaints []string) {
	t.Helper()
	root := releaseOf(t, tree, "go.mod")
	if len(root) != 2 {
		complaints = append(complaints, fmt.Sprintf("go.mod: has %q, want a go and a toolchain line", root))
	}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && ignored(name):
			return fs.SkipDir
		case entry.IsDir() || path.Base(name) != "go.mod":
			return nil
		}
		if got := releaseOf(t, tree, name); !slices.Equal(got, root) {
			complaints = append(complaints, fmt.Sprintf("%s: has %q, and the root %q", name, got, root))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return complaints
}

// releaseOf returns the go and toolchain lines of a go.mod.
func releaseOf(t *testing.T, tree fs.FS, name string) []string {
	t.Helper()
	return releaseLine.FindAllString(readText(t, tree, name), -1)
}

func readText(t *testing.T, tree fs.FS, name string) string {
	t.Helper()
	text, err := fs.ReadFile(tree, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
