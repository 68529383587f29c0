package rules_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// Each file in testdata is one test case. Sections whose names end in .yaml are rule
// files; the other sections are the expected output:
//
//	errors, warnings   the problems in the files
//	rules              every rule
//	match              descriptors, each with its rule and key
//	explain            a descriptor on the first line, then its explanation
func TestGoldenFiles(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no files in testdata: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) { runCase(t, name) })
	}
}

func runCase(t *testing.T, name string) {
	archive, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	set, err := rules.Parse(yamlFiles(archive)...)
	checked := false
	for i, section := range archive.Files {
		if strings.HasSuffix(section.Name, ".yaml") {
			continue
		}
		checked = checked || section.Name == "errors"
		if err != nil && section.Name != "errors" {
			t.Fatalf("%s: the rules do not load: %v", name, err)
		}
		got := renderSection(t, set, err, section)
		if want := string(section.Data); got != want && !*update {
			t.Errorf("%s, section %s (-update writes it):\ngot\n%s\nwant\n%s", name, section.Name, got, want)
		}
		archive.Files[i].Data = []byte(got)
	}
	if err != nil && !checked {
		t.Fatalf("%s: the rules do not load, and there is no section errors: %v", name, err)
	}
	if *update {
		if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func yamlFiles(archive *txtar.Archive) (files []rules.File) {
	for _, f := range archive.Files {
		if strings.HasSuffix(f.Name, ".yaml") {
			files = append(files, rules.File{Name: f.Name, Text: f.Data})
		}
	}
	return files
}

// renderSection returns the actual output for a section.
func renderSection(t *testing.T, set *rules.Set, err error, section txtar.File) string {
	switch section.Name {
	case "errors":
		var all rules.Errors
		if !errors.As(err, &all) {
			t.Fatalf("loaded with the error %v, want rules.Errors", err)
		}
		return err.Error() + "\n"
	case "warnings":
		return set.Warnings().Error() + "\n"
	case "rules":
		return listRules(set)
	case "match":
		return matchLines(t, set, string(section.Data))
	case "explain":
		line, _, _ := strings.Cut(string(section.Data), "\n")
		domain, entries := parseDescriptorLine(t, line)
		return line + "\n" + set.Explain(domain, entries).String()
	}
	t.Fatalf("no such section: %s", section.Name)
	return ""
}

// listRules returns a line for each rule, followed by its settings besides the limit.
func listRules(set *rules.Set) string {
	var b strings.Builder
	for _, r := range set.Rules() {
		limit := "unlimited"
		if !r.Unlimited {
			limit = r.Limit.WithName("").String()
		}
		fmt.Fprintf(&b, "%s: %s (%s:%d)\n", r.Name, limit, r.File, r.Line)
		for _, line := range ruleSettings(r) {
			fmt.Fprintf(&b, "\t%s\n", line)
		}
	}
	return b.String()
}

func ruleSettings(r *rules.Rule) (lines []string) {
	add := func(applies bool, format string, args ...any) {
		if applies {
			lines = append(lines, fmt.Sprintf(format, args...))
		}
	}
	add(!r.Unlimited, "for Envoy: %d per %s", r.RequestsPerUnit, r.Unit)
	add(r.Shadow, "shadow")
	add(r.Quota, "quota")
	add(r.Alias != "", "alias %s", r.Alias)
	add(len(r.Replaces) > 0, "replaces %s", r.Replaces)
	add(r.Metadata != nil, "metadata %v", r.Metadata)
	add(r.OnStoreFailure != rules.FailDefault, "on store failure %s", r.OnStoreFailure)
	add(r.Share != 0, "share %v", r.Share)
	add(r.Lease != nil && *r.Lease, "lease")
	add(r.DenyCache != nil && *r.DenyCache, "deny cache on")
	add(r.DenyCache != nil && !*r.DenyCache, "deny cache off")
	return lines
}

// matchLines returns each line with the actual rule and key after the arrow.
func matchLines(t *testing.T, set *rules.Set, lines string) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		descriptor, _, ok := strings.Cut(line, " ->")
		descriptor = strings.TrimRight(descriptor, "\n")
		if strings.TrimSpace(descriptor) == "" || descriptor[0] == '#' {
			b.WriteString(line)
			continue
		}
		if !ok && !*update {
			t.Fatalf("no arrow in %q", line)
		}
		domain, entries := parseDescriptorLine(t, descriptor)
		r, key := set.Domain(domain).Match(entries, nil)
		if r == nil {
			fmt.Fprintf(&b, "%s -> none\n", descriptor)
			continue
		}
		fmt.Fprintf(&b, "%s -> %s key %s\n", descriptor, r.Name, key)
	}
	return b.String()
}

// parseDescriptorLine parses a domain and entries such as path=/login.
func parseDescriptorLine(t *testing.T, line string) (domain string, entries []rules.Entry) {
	words := strings.Fields(line)
	for _, w := range words[1:] {
		key, value, ok := strings.Cut(w, "=")
		if !ok {
			t.Fatalf("no equals sign in %q of %q", w, line)
		}
		entries = append(entries, rules.Entry{Key: key, Value: value})
	}
	return words[0], entries
}

// fuzzSeeds returns the rule files in testdata.
func fuzzSeeds(f *testing.F) (texts [][]byte) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(names) == 0 {
		f.Fatalf("no files in testdata: %v", err)
	}
	for _, name := range names {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range yamlFiles(archive) {
			texts = append(texts, file.Text)
		}
	}
	return texts
}
