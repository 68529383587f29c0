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

// A wrapper of package penstock is in the table; that of another one is checked by its own tests.
func TestEveryWrapperIsChecked(t *testing.T) {
	root, found := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		for _, name := range wrappersIn(t, path) {
			found++
			inTable := slices.ContainsFunc(Wrappers, func(w Wrapper) bool { return w.Name == name })
			if dir := filepath.Dir(path); dir == root && !inTable || dir != root && !callsCheckWatcher(t, dir) {
				t.Errorf("%s: %s: want a row of wraptest.Wrappers, or a test by wraptest.CheckWatcher", path, name)
			}
		}
		return nil
	})
	if err != nil || found < len(Wrappers) {
		t.Errorf("found %d wrappers, %v; want those of the table, and of adapters", found, err)
	}
}

// wrappersIn returns the exported functions of a file whose names begin with With, and that take a store first.
func wrappersIn(t *testing.T, path string) (names []string) {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "With") && len(fn.Type.Params.List) > 0 && isStore(fn.Type.Params.List[0].Type) {
			names = append(names, fn.Name.Name)
		}
	}
	return names
}

func isStore(x ast.Expr) bool {
	if of, ok := x.(*ast.SelectorExpr); ok {
		x = of.Sel
	}
	name, ok := x.(*ast.Ident)
	return ok && name.Name == "Store"
}

func callsCheckWatcher(t *testing.T, dir string) bool {
	tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(tests, func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), "wraptest.CheckWatcher(")
	})
}
