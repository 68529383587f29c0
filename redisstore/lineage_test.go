package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/redisstore"
)

// The lineage tests compare the store with the rate limiters that it learned from.
// internal/rivalscripts has the script of each, with the same commands in the same
// order, flaws included. Where a rival is correct, the store decides the same; for
// each flaw there is a trace on which the rival is wrong and the store is not.
// docs/lineage.md lists them.

// A rivalTest runs a rival and a store side by side on the fake clock.
type rivalTest struct {
	*testing.T
	store  *redisstore.Store
	prefix string
	now    time.Time // of the server and of callers with a correct clock
	random *rand.Rand
}

func newRivalTest(t *testing.T) *rivalTest {
	tr := &rivalTest{T: t, prefix: newPrefix()}
	tr.store = openFakeClock(t, redisstore.Options{Prefix: tr.prefix})
	seed := fixedseed.Seed()
	tr.random = rand.New(rand.NewPCG(seed, 0))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	tr.set(time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC))
	return tr
}

func (tr *rivalTest) set(now time.Time) {
	tr.now = now
	fakeClockServer.Clock.Set(now)
}

func (tr *rivalTest) wait(d time.Duration) { tr.set(tr.now.Add(d)) }

// sharedOptions are the options of another process that shares the state.
func sharedOptions(prefix string) redisstore.Options { return redisstore.Options{Prefix: prefix} }

// key returns a name for a key of a rival. The check for keys without expiry ignores
// it, because some rivals leave such keys.
func (tr *rivalTest) key(name string) string { return "foreign-" + tr.prefix + name }

func (tr *rivalTest) command(words ...any) string {
	tr.Helper()
	texts := make([]string, len(words))
	for i, word := range words {
		texts[i] = fmt.Sprint(word)
	}
	answer, err := fakeClockServer.Command(texts...)
	if err != nil {
		tr.Fatalf("%v: %v", words, err)
	}
	return answer
}

func (tr *rivalTest) number(words ...any) int64 {
	tr.Helper()
	n, err := strconv.ParseInt(tr.command(words...), 10, 64)
	if err != nil {
		tr.Fatalf("%v: %v", words, err)
	}
	return n
}

// ttl returns the time to live of a key; it is negative without expiry.
func (tr *rivalTest) ttl(key string) time.Duration {
	tr.Helper()
	return time.Duration(tr.number("PTTL", key)) * time.Millisecond
}

// storeKeys returns the names of the store's keys.
func (tr *rivalTest) storeKeys() []string {
	tr.Helper()
	return keys(tr.T, fakeClockServer, tr.prefix)
}

func readRival(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "internal", "rivalscripts", name+".lua"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// eval runs a script.
func (tr *rivalTest) eval(text string, keys []string, args ...any) (string, error) {
	words := append([]string{"EVAL", text, strconv.Itoa(len(keys))}, keys...)
	for _, arg := range args {
		words = append(words, fmt.Sprint(arg))
	}
	return fakeClockServer.Command(words...)
}

// runRival runs the script of a rival by name.
func (tr *rivalTest) runRival(rival string, keys []string, args ...any) string {
	tr.Helper()
	answer, err := tr.eval(readRival(tr.T, rival), keys, args...)
	if err != nil {
		tr.Fatalf("%s on %q with %v: %v", rival, keys, args, err)
	}
	return answer
}

// request sends a request to the store.
func (tr *rivalTest) request(r penstock.Request) penstock.Decision {
	tr.Helper()
	if r.Key == "" {
		r.Key = "key"
	}
	d, err := tr.store.Take(context.Background(), r)
	if err != nil {
		tr.Fatalf("%+v: %v", r, err)
	}
	return d
}

// take takes one unit from the store.
func (tr *rivalTest) take(l penstock.Limit) penstock.Decision {
	tr.Helper()
	return tr.request(penstock.Request{Limit: l, Cost: 1})
}

// countAdmitted returns how many of n calls are admitted.
func countAdmitted(n int, admitted func() bool) (count int) {
	for range n {
		if admitted() {
			count++
		}
	}
	return count
}

// checkSame fails the test unless rival and store both grant want.
func (tr *rivalTest) checkSame(what string, rival, store, want int) {
	tr.Helper()
	tr.checkDiffer(what, rival, want, store, want)
}

// checkDiffer fails the test unless the rival is wrong as known and the store is right.
func (tr *rivalTest) checkDiffer(what string, rival, wrong, store, right int) {
	tr.Helper()
	if rival != wrong {
		tr.Errorf("%s: the rival grants %d, want %d", what, rival, wrong)
	}
	if store != right {
		tr.Errorf("%s: the store grants %d, want %d", what, store, right)
	}
}

const lineagePage = "../docs/lineage.md"

var (
	rowOfPage  = regexp.MustCompile(`(?m)^\| .* \|$`)
	testOnPage = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	fileOnPage = regexp.MustCompile("`([a-z0-9/_-]+\\.(?:go|lua|md|txt))`")
	testInCode = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
)

func TestLineagePageReferencesExist(t *testing.T) {
	page, err := os.ReadFile(lineagePage)
	if err != nil {
		t.Fatal(err)
	}
	tests := testsBelow(t, "..")
	for _, name := range namesIn(testOnPage, page) {
		if !slices.Contains(tests, name) {
			t.Errorf("%s names the test %s, which does not exist", lineagePage, name)
		}
	}
	for _, name := range namesIn(fileOnPage, page) {
		if _, err := os.Stat(filepath.Join("..", name)); err != nil {
			t.Errorf("%s: %v", lineagePage, err)
		}
	}
	built, _, found := strings.Cut(string(page), "\n## Not implemented\n")
	if !found {
		t.Errorf("%s: no section of what is not implemented", lineagePage)
	}
	for _, row := range rowOfPage.FindAllString(string(page), -1) {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 4 || slices.ContainsFunc(cells, func(cell string) bool { return strings.TrimSpace(cell) == "" }) {
			t.Errorf("%s: want four non-empty cells: %s", lineagePage, row)
		}
		if strings.Contains(built, row) && !strings.HasPrefix(row, "| from") && !testOnPage.MatchString(row) {
			t.Errorf("%s: no test for this row: %s", lineagePage, row)
		}
	}
}

func TestLineagePageListsEveryTest(t *testing.T) {
	page, err := os.ReadFile(lineagePage)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("lineage*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range testsIn(t, files) {
		if !slices.Contains(namesIn(testOnPage, page), name) {
			t.Errorf("%s does not name %s", lineagePage, name)
		}
	}
	scripts, err := filepath.Glob("../internal/rivalscripts/*.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("found no rival scripts: %v", err)
	}
	for _, path := range scripts {
		if path = strings.TrimPrefix(path, "../"); !slices.Contains(namesIn(fileOnPage, page), path) {
			t.Errorf("%s does not name %s", lineagePage, path)
		}
	}
}

func namesIn(pattern *regexp.Regexp, text []byte) (names []string) {
	for _, match := range pattern.FindAllSubmatch(text, -1) {
		names = append(names, string(match[1]))
	}
	return names
}

// testsBelow returns the names of all tests in a tree.
func testsBelow(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return testsIn(t, files)
}

func testsIn(t *testing.T, files []string) (names []string) {
	t.Helper()
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, namesIn(testInCode, text)...)
	}
	if len(names) == 0 {
		t.Fatalf("found no tests in %q", files)
	}
	return names
}
