package wraptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWrappersDecideInOneCall(t *testing.T) {
	for _, way := range Ways {
		t.Run(way.Name, func(t *testing.T) { Check(t, way) })
	}
	for _, w := range Wrappers {
		if w.Watches {
			CheckWatcher(t.Context(), t, w)
		}
	}
}

// A wrapper of package penstock is in the table; that of another one is checked by its own tests, as is every store
// that is transparent.
func TestEveryWrapperIsChecked(t *testing.T) {
	root, found := filepath.Join("..", ".."), 0
	watchers := map[string]int{} // by directory
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		dir := filepath.Dir(path)
		names, transparent := wrappersIn(t, path)
		for _, name := range names {
			found++
			inTable := slices.ContainsFunc(Wrappers, func(w Wrapper) bool { return w.Name == name })
			if dir == root && !inTable || dir != root && checkedWatchers(t, dir) == 0 {
				t.Errorf("%s: %s: want a row of wraptest.Wrappers, or a test by wraptest.CheckWatcher", path, name)
			}
		}
		watchers[dir] += transparent
		return nil
	})
	if err != nil || found < len(Wrappers) {
		t.Errorf("found %d wrappers, %v; want those of the table, and of adapters", found, err)
	}
	for dir, n := range watchers {
		checked := checkedWatchers(t, dir)
		if dir == root {
			checked = len(slices.DeleteFunc(slices.Clone(Wrappers), func(w Wrapper) bool { return !w.Watches }))
		}
		if checked < n {
			t.Errorf("%s: %d stores have Unwrap, and %d are checked by wraptest.CheckWatcher", dir, n, checked)
		}
	}
	if len(watchers) == 0 || watchers[root] == 0 {
		t.Errorf("found the transparent stores %v, want some in package penstock", watchers)
	}
}

// wrappersIn returns the exported functions of a file whose names begin with With, and that take a store first, and
// how many types have a method Unwrap that returns a store.
func wrappersIn(t *testing.T, path string) (names []string, transparent int) {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		switch {
		case !ok:
		case fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "With") && len(fn.Type.Params.List) > 0 && isStore(fn.Type.Params.List[0].Type):
			names = append(names, fn.Name.Name)
		case fn.Recv != nil && fn.Name.Name == "Unwrap" && fn.Type.Results != nil && isStore(fn.Type.Results.List[0].Type):
			transparent++
		}
	}
	return names, transparent
}

func isStore(x ast.Expr) bool {
	if of, ok := x.(*ast.SelectorExpr); ok {
		x = of.Sel
	}
	name, ok := x.(*ast.Ident)
	return ok && name.Name == "Store"
}

// checkedWatchers returns how many wrappers the tests of a directory check.
func checkedWatchers(t *testing.T, dir string) (n int) {
	tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range tests {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "wraptest.CheckWatcher(") {
			n += strings.Count(string(text), "wraptest.Wrapper{")
		}
	}
	return n
}
