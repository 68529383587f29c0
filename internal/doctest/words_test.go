package doctest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// abandoned are words that this project once used in a private sense, and what to
// write instead. They must not come back in identifiers, strings, comments or
// documents.
var abandoned = map[string]string{
	"clerk":         "counters",
	"coach":         "batch",
	"coaches":       "batches",
	"detour":        "ask another node",
	"diary":         "snapshot log",
	"door":          "API, listener",
	"doors":         "APIs, listeners",
	"entrance":      "listener, connection limit",
	"farewell":      "shutdown, drain",
	"goodbyes":      "drain",
	"guest":         "connection",
	"guests":        "connections",
	"hearing":       "evaluation",
	"judge":         "engine",
	"judged":        "checked, decided",
	"landlord":      "lease fixture",
	"neighbourhood": "client prefix",
	"nobody":        "no caller, no client, …",
	"purse":         "unit pool",
	"somebody":      "a caller, a client, …",
	"stranger":      "new key, unknown client",
	"strangers":     "new keys, unknown clients",
	"switchboard":   "breaker fixture",
	"verdict":       "outcome, result",
	"visitor":       "client, connection",
	"visitors":      "clients, connections",
	"whoever":       "a caller that, a client that, …",
	"everybody":     "all callers, all clients, …",
}

// abandonedPhrases are phrases, and options that not every reader's program has.
var abandonedPhrases = map[string]string{
	"as good as new": "full, idle",
	"give back":      "refund",
	"given back":     "refunded",
	"gives back":     "refunds",
	"giving back":    "refunding",
	"under way":      "in flight",
	"who asks":       "the caller, the client",
	"stands in line": "waits",
	"--json '":       "-H 'Content-Type: application/json' -d ', which every curl has",
}

// wordsExempt are files that may name the words: this list, and what we tell
// contributors to write instead.
var wordsExempt = []string{"internal/doctest/words_test.go", "CONTRIBUTING.md", "CHANGELOG.md"}

func TestAbandonedWordsStayAbandoned(t *testing.T) {
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		switch {
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return filepath.SkipDir
		case d.IsDir() || slices.Contains(wordsExempt, filepath.ToSlash(name)):
			return nil
		}
		files++
		return checkWords(t, path, name)
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 300 {
		t.Errorf("only %d files found: the search is broken", files)
	}
}

func checkWords(t *testing.T, path, name string) error {
	t.Helper()
	switch filepath.Ext(path) {
	case ".go":
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range wordsInGo(t, name, text) {
			t.Error(found)
		}
	case ".md", ".lua", ".yaml", ".yml", ".txt", ".txtar", ".service":
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range abandonedIn(string(text)) {
			t.Errorf("%s: %s", name, found)
		}
	}
	return nil
}

// wordsInGo returns the abandoned words in the identifiers, strings and comments of a
// file.
func wordsInGo(t *testing.T, name string, src []byte) (found []string) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	report := func(pos token.Pos, text string) {
		for _, word := range abandonedIn(text) {
			found = append(found, fset.Position(pos).String()+": "+word)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			report(n.Pos(), splitCamelCase(n.Name))
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				report(n.Pos(), n.Value)
			}
		}
		return true
	})
	for _, group := range f.Comments {
		report(group.Pos(), group.Text())
	}
	return found
}

var wordPattern = regexp.MustCompile(`[a-z]+`)

// abandonedIn returns what is wrong with the words of a text.
func abandonedIn(text string) (found []string) {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	for _, word := range wordPattern.FindAllString(text, -1) {
		if instead, ok := abandoned[word]; ok {
			found = append(found, "write "+instead+" instead of "+word)
		}
	}
	for phrase, instead := range abandonedPhrases {
		if strings.Contains(text, phrase) {
			found = append(found, "write "+instead+" instead of "+phrase)
		}
	}
	return found
}

// splitCamelCase returns the words of an identifier, separated by spaces.
func splitCamelCase(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	return strings.ReplaceAll(b.String(), "_", " ")
}

func TestAbandonedWordsAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"the door is open":            1,
		"outdoors":                    0,
		"it gives units back":         0,
		"what was\ngiven back":        1,
		"what was given back":         1,
		splitCamelCase("openDoors"):   1,
		splitCamelCase("TestNobody"):  1,
		splitCamelCase("giveBack"):    1,
		splitCamelCase("open_door_x"): 1,
	} {
		if got := abandonedIn(text); len(got) != want {
			t.Errorf("%q: found %q, want %d", text, got, want)
		}
	}
}
