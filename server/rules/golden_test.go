package rules_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/rules"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the files in testdata to what is got")

// Each file in testdata is a lesson: rule files, and what they mean. Sections
// whose names end in .yaml are the files; the others say what to ask of them:
//
//	errors, warnings   what is wrong with them
//	rules              every rule that they make
//	match              descriptors, and the rule and key that each gets
//	explain            a descriptor on the first line, and its explanation
func TestLessons(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no lessons: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) { runLesson(t, name) })
	}
}

func runLesson(t *testing.T, name string) {
	lesson, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	set, err := rules.Parse(yamlFiles(lesson)...)
	asked := false
	for i, section := range lesson.Files {
		if strings.HasSuffix(section.Name, ".yaml") {
			continue
		}
		asked = asked || section.Name == "errors"
		if err != nil && section.Name != "errors" {
			t.Fatalf("%s: the rules do not load: %v", name, err)
		}
		got := ask(t, set, err, section)
		if want := string(section.Data); got != want && !*update {
			t.Errorf("%s, section %s:\ngot\n%s\nwant\n%s", name, section.Name, got, want)
		}
		lesson.Files[i].Data = []byte(got)
	}
	if err != nil && !asked {
		t.Fatalf("%s: the rules do not load, and nobody asks why: %v", name, err)
	}
	if *update {
		if err := os.WriteFile(name, txtar.Format(lesson), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func yamlFiles(lesson *txtar.Archive) (files []rules.File) {
	for _, f := range lesson.Files {
		if strings.HasSuffix(f.Name, ".yaml") {
			files = append(files, rules.File{Name: f.Name, Text: f.Data})
		}
	}
	return files
}

// ask returns what a section should say.
func ask(t *testing.T, set *rules.Set, err error, section txtar.File) string {
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
		question, _, _ := strings.Cut(string(section.Data), "\n")
		domain, entries := parseQuestion(t, question)
		return question + "\n" + set.Explain(domain, entries).String()
	}
	t.Fatalf("no such section: %s", section.Name)
	return ""
}

// listRules returns a line for each rule, and below it what is not in its limit.
func listRules(set *rules.Set) string {
	var b strings.Builder
	for _, r := range set.Rules() {
		limit := "unlimited"
		if !r.Unlimited {
			limit = r.Limit.WithName("").String()
		}
		fmt.Fprintf(&b, "%s: %s (%s:%d)\n", r.Name, limit, r.File, r.Line)
		for _, line := range extras(r) {
			fmt.Fprintf(&b, "\t%s\n", line)
		}
	}
	return b.String()
}

func extras(r *rules.Rule) (lines []string) {
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

// matchLines answers each line up to its arrow.
func matchLines(t *testing.T, set *rules.Set, lines string) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		question, _, ok := strings.Cut(line, " ->")
		question = strings.TrimRight(question, "\n")
		if strings.TrimSpace(question) == "" || question[0] == '#' {
			b.WriteString(line)
			continue
		}
		if !ok && !*update {
			t.Fatalf("no answer in %q", line)
		}
		domain, entries := parseQuestion(t, question)
		r, key := set.Domain(domain).Match(entries, nil)
		if r == nil {
			fmt.Fprintf(&b, "%s -> none\n", question)
			continue
		}
		fmt.Fprintf(&b, "%s -> %s key %s\n", question, r.Name, key)
	}
	return b.String()
}

// parseQuestion reads a domain and entries such as path=/login.
func parseQuestion(t *testing.T, line string) (domain string, entries []rules.Entry) {
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

// fuzzSeeds returns the rule files of the lessons.
func fuzzSeeds(f *testing.F) (texts [][]byte) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(names) == 0 {
		f.Fatalf("no lessons: %v", err)
	}
	for _, name := range names {
		lesson, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range yamlFiles(lesson) {
			texts = append(texts, file.Text)
		}
	}
	return texts
}
