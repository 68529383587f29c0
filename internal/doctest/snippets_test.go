package doctest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

// The Go on the pages is type-checked, in one package for each block. A block
// that is not a whole file may omit imports, use ctx, store and lim without
// declaring them, and declare variables that it does not use.
func TestSnippetsCompile(t *testing.T) {
	var snippets []*snippet
	for _, page := range pages {
		for _, f := range Fences(page, readPage(t, page)) {
			if f.Info == "go" && !strings.Contains(f.Body, "gin-gonic/gin") { // which this module does not require
				snippets = append(snippets, parseSnippet(t, f))
			}
		}
	}
	exports := exportsOf(t, snippets)
	for _, s := range snippets {
		s.check(t, exports)
	}
	if len(snippets) == 0 {
		t.Errorf("%v have no Go", pages)
	}
}

type snippet struct {
	fset *token.FileSet
	file *ast.File
	info types.Info
}

// snippetImports are the packages that a block need not import.
var snippetImports = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "http": "net/http",
	"math": "math", "net": "net", "time": "time",
	"penstock": module, "redisstore": module + "/redisstore", "httplimit": module + "/httplimit",
	"atomic": "sync/atomic", "rulelimit": module + "/rulelimit", "rulesource": module + "/rulesource", "rules": module + "/rules",
	"storepolicy": module + "/server/storepolicy",
}

func parseSnippet(t *testing.T, f Fence) *snippet {
	t.Helper()
	if formatted, err := format.Source([]byte(f.Body)); err == nil && string(formatted) != f.Body {
		t.Errorf("%s:%d: not formatted; it should be\n%s", f.Page, f.Line, formatted)
	}
	s := &snippet{fset: token.NewFileSet(), info: types.Info{Types: map[ast.Expr]types.TypeAndValue{}}}
	var err error
	for _, src := range f.wrappings() {
		s.file, err = parser.ParseFile(s.fset, f.Page, src, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil {
			return s
		}
	}
	t.Fatal(err)
	return nil
}

// wrappings returns the block as a file, in the ways in which it can be one: as
// it is, as declarations, and as statements.
func (f Fence) wrappings() []string {
	position := fmt.Sprintf("\n//line %s:%d\n", f.Page, f.Line)
	if strings.HasPrefix(f.Body, "package ") {
		return []string{position[1:] + f.Body}
	}
	head := "package p"
	for name, path := range snippetImports {
		if regexp.MustCompile(`\b`+name+`\.`).MatchString(f.Body) && !strings.Contains(f.Body, `"`+path+`"`) {
			head += fmt.Sprintf("; import %q", path)
		}
	}
	known := fmt.Sprintf("; import c %q; import p %q; var ctx c.Context; var store p.Store; var lim, perAddress, perUser, forAll *p.Limiter",
		"context", module)
	return []string{
		head + position + f.Body,
		head + known + "; func _() (_ error) {" + position + f.Body + "return nil }",
	}
}

// exportsOf returns the files with the types of all packages that the snippets
// need. The go command has them in its cache, or compiles them.
func exportsOf(t *testing.T, snippets []*snippet) map[string]string {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "--"}
	for _, s := range snippets {
		for _, spec := range s.file.Imports {
			args = append(args, strings.Trim(spec.Path.Value, "`\""))
		}
	}
	var stderr strings.Builder
	list := exec.CommandContext(t.Context(), "go", args...)
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	return exports
}

// check reports compile errors, and limits that differ from the text in the
// comment behind them.
func (s *snippet) check(t *testing.T, exports map[string]string) {
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	conf := types.Config{
		Importer: importer.ForCompiler(s.fset, "gc", open),
		Error: func(err error) {
			var bad types.Error
			if !errors.As(err, &bad) || !bad.Soft { // soft errors are unused declarations
				t.Error(err)
			}
		},
	}
	_, _ = conf.Check("p", s.fset, []*ast.File{s.file}, &s.info)
	s.checkLimits(t)
}

// checkLimits evaluates each limit that has its text in a comment behind it.
func (s *snippet) checkLimits(t *testing.T) {
	comments := map[int]string{}
	for _, c := range s.file.Comments {
		comments[s.fset.Position(c.Pos()).Line] = strings.TrimSpace(c.Text())
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok || len(assign.Rhs) != 1 || !s.isLimit(assign.Rhs[0]) {
			return true
		}
		at := s.fset.Position(assign.End())
		want, err := penstock.ParseLimit(comments[at.Line])
		if err != nil {
			return true // some other comment
		}
		if got, ok := s.limit(assign.Rhs[0]); !ok || got.String() != want.String() {
			t.Errorf("%v: the limit is %v, the comment says %v", at, got, want)
		}
		return true
	})
}

func (s *snippet) isLimit(e ast.Expr) bool {
	typ := s.info.Types[e].Type
	return typ != nil && typ.String() == module+".Limit"
}

// limit evaluates a limit that is written as a literal or as a chain of calls, all
// with constant arguments.
func (s *snippet) limit(e ast.Expr) (l penstock.Limit, ok bool) {
	switch e := e.(type) {
	case *ast.CompositeLit:
		for _, elt := range e.Elts {
			field, ok := elt.(*ast.KeyValueExpr)
			if !ok || !s.set(reflect.ValueOf(&l).Elem().FieldByName(fmt.Sprint(field.Key)), field.Value) {
				return l, false
			}
		}
		return l, true
	case *ast.CallExpr:
		f, ok := s.function(e.Fun)
		if !ok || len(e.Args) != 1 || f.Type().NumIn() != 1 {
			return l, false
		}
		arg := reflect.New(f.Type().In(0)).Elem()
		if !s.set(arg, e.Args[0]) {
			return l, false
		}
		l, ok = f.Call([]reflect.Value{arg})[0].Interface().(penstock.Limit)
		return l, ok
	}
	return l, false
}

var constructors = map[string]func(int64) penstock.Limit{
	"PerSecond": penstock.PerSecond, "PerMinute": penstock.PerMinute,
	"PerHour": penstock.PerHour, "PerDay": penstock.PerDay,
}

// function returns a constructor of limits, or a method of a limit.
func (s *snippet) function(e ast.Expr) (f reflect.Value, ok bool) {
	call, ok := e.(*ast.SelectorExpr)
	if !ok {
		return f, false
	}
	if s.isLimit(call.X) {
		l, ok := s.limit(call.X)
		f = reflect.ValueOf(l).MethodByName(call.Sel.Name)
		return f, ok && f.IsValid()
	}
	per, ok := constructors[call.Sel.Name]
	return reflect.ValueOf(per), ok
}

// set sets a variable to a constant expression.
func (s *snippet) set(variable reflect.Value, e ast.Expr) bool {
	value := s.info.Types[e].Value
	if value == nil || !variable.IsValid() {
		return false
	}
	variable.Set(reflect.ValueOf(constant.Val(value)).Convert(variable.Type()))
	return true
}

// Go that needs modules which this one does not require is copied from examples, which `make nested` compiles.
func TestFrameworkSnippetsAreExamples(t *testing.T) {
	var examples []string
	for _, pattern := range []string{"../../adapters/*/example_test.go", "../../examples/frameworks/*/main.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		examples = append(examples, files...)
	}
	var code strings.Builder
	for _, name := range examples {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(src)
		code.WriteString(strings.ReplaceAll(string(src), "\n\t", "\n")) // as in a function
	}
	found := checkCopied(t, "docs/frameworks.md", code.String(), "") + checkCopied(t, "docs/zh-CN/quickstart.md", code.String(), "gin-gonic/gin")
	if found <= len(examples) {
		t.Errorf("the pages have %d snippets, want one for each of %v", found, examples)
	}
}

// checkCopied checks that the Go blocks of a page that contain a word are part of some code, and counts them.
func checkCopied(t *testing.T, page, code, word string) (found int) {
	t.Helper()
	for _, f := range Fences(page, readPage(t, page)) {
		if f.Info != "go" || !strings.Contains(f.Body, word) {
			continue
		}
		if found++; !strings.Contains(code, f.Body) {
			t.Errorf("%s:%d: no example has\n%s", page, f.Line, f.Body)
		}
	}
	return found
}
