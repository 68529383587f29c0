package rules_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
)

func TestLoadReadsDirectory(t *testing.T) {
	f := newTestDir(t)
	f.write("b.yaml", ruleFile("b", 2))
	f.write("a", ruleFile("a", 1)) // whatever its extension
	f.write("sub/sub/c.txt", ruleFile("c", 3))
	f.link("../b.yaml", "sub/again") // a file with several names is read once
	f.link(".", "sub/loop")
	for _, name := range []string{".hidden", ".git/config", "a~", "#a#", "..data/a"} {
		f.write(name, "not rules")
	}
	set, err := rules.Load(f.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range set.Rules() {
		got = append(got, fmt.Sprintf("%s %s", r.Name, strings.TrimPrefix(r.File, f.path+"/")))
	}
	if want := "a/k a, b/k b.yaml, c/k sub/sub/c.txt"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
}

func TestLoadErrorsNameThePath(t *testing.T) {
	f := newTestDir(t)
	f.must(os.Mkdir(f.join("empty"), 0o755))
	f.link("nowhere", "dangling")
	f.link("round", "round")
	f.write("links/good", ruleFile("good", 1))
	f.link("../nowhere", "links/bad")
	f.write("large", strings.Repeat("#", 16<<20+1))
	f.write("bad", "domain: d\ndescriptors: x\n")
	f.write("deep/"+strings.Repeat("d/", 33)+"f", ruleFile("deep", 1))
	for i := range 1001 {
		f.write(fmt.Sprintf("many/%04d", i), "domain: d")
	}
	for i := range 17 {
		f.write(fmt.Sprintf("much/%02d", i), "")
		f.must(os.Truncate(f.join(fmt.Sprintf("much/%02d", i)), 4<<20))
	}
	for _, c := range []struct{ name, want string }{
		{"missing", "missing: no such file or directory"},
		{"empty", "empty: no rule files in this directory"},
		{"dangling", "dangling: no such file or directory"},
		{"round", "round: too many levels of symbolic links"},
		{"links", "links/bad: no such file or directory"},
		{"large", "large: file has 16777217 bytes: at most 16777216 are allowed"},
		{"bad", "bad:2: descriptors: want a list, got 'x'"},
		{"deep", "deep/" + strings.TrimSuffix(strings.Repeat("d/", 32), "/") + ": directories are nested more than 32 levels deep"},
		{"many", "many/1000: too many rule files: at most 1000 are allowed"},
		{"much", "much/16: rule files are larger than 67108864 bytes in total"},
	} {
		_, err := rules.Load(f.join(c.name), nil)
		if got := strings.TrimPrefix(fmt.Sprint(err), f.path+"/"); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestLoadRelativePath(t *testing.T) {
	f := newTestDir(t)
	f.write("rules/api.yaml", "domain: api\ndescriptors: x\n")
	t.Chdir(f.path)
	want := "rules/api.yaml:2: descriptors: want a list, got 'x'"
	if _, err := rules.Load("rules", nil); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := rules.Load("", nil); err == nil || err.Error() != "path to rules is empty" {
		t.Errorf("got %v, want an error about the missing path", err)
	}
}
